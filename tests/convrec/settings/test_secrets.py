"""One rule recognises secrets among variables, settings and overrides; they are masked or refused."""

import io
from typing import cast

import pytest

from convrec.settings import secrets
from tests.user_errors import refuses

SECRET = "sk-4f9a-secret"
KWARGS = "reward.custom_reward_function.reward_kwargs"


@pytest.mark.parametrize(
    "name",
    [
        *("api_key", "hf_token", "HF_TOKEN", "db_password", "client_secret", "MY_JWT", "SESSION_COOKIE", "cookie"),
        *("AWS_SIGNATURE", "SENTRY_DSN", "dsn", "webhook_url", "auth", "ssh_passphrase", "TORCH_X_PWD"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert secrets.is_secret_name(name)
    assert secrets.is_secret(name, SECRET)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt_key", "prompt"),
        ("tokenizer_path", "/models/tokenizer"),
        ("pad_token", "<pad>"),
        ("ppo_max_token_len_per_gpu", 16384),
        ("max_tokens", 64),
        ("bypass_mode", "off"),
        ("use_auth", True),
        ("api_key", None),
        ("api_key", ""),
        ("api_key", "${oc.env:REWARD_KEY}"),  # where it is taken from
        ("train_files", "/data/a.parquet"),
        ("path", "pkg://reward.catalog_match"),
        ("custom_chat_template", "{{ 'to:x@y' }}"),
    ],
)
def test_columns_numbers_and_references_are_not_secrets(name: str, value: object) -> None:
    assert not secrets.is_secret(name, value)


@pytest.mark.parametrize(
    "url",
    [
        *("http://me:pw@host:3128", "mysql+pymysql://user:pw@host/x", "https://host/?access_token=x"),
        *("https://host/?pwd=x", "https://host/?a=b&pass=x", "https://host/cb?code=x", "https://host/?user_pass=x"),
        "https://h/#id_token=x",
    ],
)
def test_a_url_with_a_password_is_a_secret_under_any_name(url: str) -> None:
    assert secrets.holds_password(url)
    assert secrets.is_secret("address", url)


@pytest.mark.parametrize(
    "url", ["https://host/?encoder=x&bypass=1&compass=n", "s3://bucket/a@b", "mysql+pymysql://h/x"]
)
def test_other_urls_are_not_secrets(url: str) -> None:
    assert not secrets.holds_password(url)
    assert secrets.is_url(url)


def test_only_the_secrets_of_nested_settings_are_masked() -> None:
    settings = {
        "data": {"prompt_key": "prompt", "files": ["/a", "/b"]},
        "reward": {"kwargs": {"api_key": SECRET, "url": f"https://me:{SECRET}@host", "retries": 3}},
        "headers": {"accept": "text/plain", "count": 2},
        "password": 123456,
    }
    assert secrets.mask_settings(settings) == {
        "data": {"prompt_key": "prompt", "files": ["/a", "/b"]},
        "reward": {"kwargs": {"api_key": "***", "url": "***", "retries": 3}},
        "headers": {"accept": "***", "count": "***"},
        "password": "***",
    }
    assert settings["reward"]["kwargs"]["api_key"] == SECRET  # type: ignore[index]


def test_printed_text_masks_secrets_and_their_long_words() -> None:
    values = secrets.collect_secret_values({"headers": [f"Bearer {SECRET}"], "token": "abc"})
    terminal = io.StringIO()
    stream = secrets.MaskedStream(cast(io.TextIOWrapper, terminal), values)
    print(f"{{'headers': ('Bearer ' '{SECRET}')}} abcd, Bearer {SECRET}x", file=cast(io.TextIOWrapper, stream))
    # as pprint breaks it; a word that only begins with it, and too short a secret, stay
    assert terminal.getvalue() == f"{{'headers': ('Bearer ' '***')}} abcd, Bearer {SECRET}x\n"


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        (f"HF_TOKEN={SECRET}", "set the variable HF_TOKEN"),
        (f"+SWANLAB_API_KEY='{SECRET}'", "set the variable SWANLAB_API_KEY"),
        (f"+ray_kwargs.ray_init.runtime_env.env_vars.OPENAI_API_KEY={SECRET}", "set the variable OPENAI_API_KEY"),
        (f"+ray_kwargs.ray_init.runtime_env={{env_vars: {{HF_TOKEN: {SECRET}}}}}", "set the variable HF_TOKEN"),
        (f"+ray_kwargs.ray_init.runtime_env.env_vars.proxy='me:{SECRET}@proxy'", "set the variable proxy"),
        (f"+trainer.hf_token={SECRET}", "set the variable HF_TOKEN"),
        (f"+trainer.wandb_proxy='http://me:{SECRET}@proxy'", "set the variable HTTPS_PROXY"),
        (f"HF_TOKEN={SECRET}$(", "set the variable HF_TOKEN"),  # Hydra cannot parse it
        (f"+{KWARGS}.api_key={SECRET}", f"write {KWARGS}.api_key='${{oc.env:NAME}}'"),
        (f"+{KWARGS}.headers=[{SECRET}]", f"write {KWARGS}.headers='${{oc.env:NAME}}'"),
        (f"+{KWARGS}.url='https://me:{SECRET}@host/'", f"write {KWARGS}.url='${{oc.env:NAME}}'"),
    ],
)
def test_secret_in_overrides_is_refused_with_an_alternative(argument: str, instead: str) -> None:
    with refuses("settings.secret", instead) as error:
        secrets.refuse_secrets(["trainer.nnodes=2", argument])
    assert SECRET not in str(error.value)
    assert "\n" not in str(error.value)


def test_other_overrides_pass() -> None:
    env_vars = "+ray_kwargs.ray_init.runtime_env.env_vars"
    arguments = [f"{env_vars}.NCCL_DEBUG=INFO", "data.prompt_key=question", "~data.seed", "+scale=lora"]
    arguments += [f"{env_vars}.HF_TOKEN='${{oc.env:HF_TOKEN}}'", "+trainer.wandb_proxy=http://proxy:3128"]
    arguments += ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096", "convrec.lr_schedule=[[0,1e-6]]"]
    arguments += [f"+{KWARGS}.api_key='${{oc.env:NAME}}'"]
    secrets.refuse_secrets(arguments)
