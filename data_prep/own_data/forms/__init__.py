"""Formats in which other programs store conversations; CONTRIBUTING.md explains how to add one."""

from collections.abc import Mapping

from data_prep.own_data.forms.base import Form
from data_prep.own_data.forms.chat import CHAT
from data_prep.own_data.forms.chatgpt import CHATGPT
from data_prep.own_data.forms.claude import CLAUDE
from data_prep.own_data.forms.dialogues import CRSLAB, MULTIWOZ, PEARL, UTTERANCES
from data_prep.own_data.forms.durecdial import DURECDIAL
from data_prep.own_data.forms.gemini import GEMINI
from data_prep.own_data.forms.instructions import ALPACA, PROMPT_COMPLETION
from data_prep.own_data.forms.message_lists import MESSAGE_LIST
from data_prep.own_data.forms.messengers import DISCORD, TELEGRAM
from data_prep.own_data.forms.openai import OPENAI_BATCH, OPENAI_RESPONSES, PREFERENCE
from data_prep.own_data.forms.opendialkg import OPENDIALKG
from data_prep.own_data.forms.own import OWN_FORM
from data_prep.own_data.forms.public_logs import OASST, PUBLIC_LOG
from data_prep.own_data.forms.redial import REDIAL, TG_REDIAL
from data_prep.own_data.forms.sharegpt import SHAREGPT
from data_prep.own_data.forms.slack import SLACK
from data_prep.own_data.forms.tables import COLUMNS, TURNS
from data_prep.own_data.forms.tickets import INTERCOM, ZENDESK
from data_prep.own_data.forms.tracing import LANGFUSE, LANGSMITH
from data_prep.own_data.forms.unicrs import UNICRS
from data_prep.own_data.forms.whatsapp import WHATSAPP

OWN = "own"
FORMS: Mapping[str, Form] = {  # a file has the first form that any of its first records fits
    "redial": REDIAL,
    "tg-redial": TG_REDIAL,
    "discord": DISCORD,
    "telegram": TELEGRAM,
    "zendesk": ZENDESK,
    "intercom": INTERCOM,
    "chatgpt": CHATGPT,
    "claude": CLAUDE,
    "sharegpt": SHAREGPT,
    "openai-batch": OPENAI_BATCH,
    "openai-responses": OPENAI_RESPONSES,
    "preference": PREFERENCE,
    "gemini": GEMINI,
    "langsmith": LANGSMITH,
    "oasst": OASST,
    "lmsys": PUBLIC_LOG,
    "durecdial": DURECDIAL,
    "unicrs": UNICRS,
    "pearl": PEARL,
    "crslab": CRSLAB,
    "multiwoz": MULTIWOZ,
    "utterances": UTTERANCES,
    "opendialkg": OPENDIALKG,
    "slack": SLACK,
    "turns": TURNS,
    OWN: OWN_FORM,
    "chat": CHAT,
    "message-list": MESSAGE_LIST,
    "alpaca": ALPACA,
    "prompt-completion": PROMPT_COMPLETION,
    "langfuse": LANGFUSE,
    "whatsapp": WHATSAPP,
    "columns": COLUMNS,
}
