"""One step of Rank-GRPO, whole and small: a tiny model, eight sampled lists for one conversation, one update.

    python docs/examples/one_step.py

Half a minute at most, nearly all of it imports. The trainer does the same with verl, Ray and vLLM around it, for many
conversations at once (docs/explanation/method.md, sections 1 to 3). Shapes: G lists, K = N ranks of a list, T tokens.
"""

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from convrec.lists.rank_rewards import rank_returns
from convrec.lists.ranks import split_lines
from convrec.lists.settings import ListSettings, make_matcher
from convrec.lists.token_ranks import stop_token_mask, table_from_bytes, token_rank_ids
from convrec.rank_grpo.advantages import assign_units, compute_rank_advantages
from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, compute_rank_policy_loss
from convrec.titles.catalog import Catalog

G, N = 8, 3  # lists for the conversation; items of a list
CATALOG = [("The Matrix", 1999), ("Heat", 1995), ("Jaws", 1975), ("Alien", 1979), ("Up", 2009), ("The Big Heat", 1953)]
SEEN = ["Up"]  # what the conversation names
LIKED = [("Alien", 1979), ("The Matrix", 1999)]  # the ground truth: what the user then took

# A vocabulary of words, so that a title may have several tokens; token 0 ends a list.
END, WORDS = 0, ["", "\n", "I liked Up.", "The", "Matrix", "Heat", "Jaws", "Alien", "Up", "Big", " "]
WORDS += [f"({year})" for _, year in CATALOG]
PROMPT = [WORDS.index("I liked Up.")]


def tokens_of(titles: list[tuple[str, int]]) -> list[int]:
    """A list as a model writes it: `Title (year)` a line, and the end."""
    text: list[str] = []
    for title, year in titles:
        for word in title.split():
            text += [word, " "]
        text += [f"({year})", "\n"]
    return [*map(WORDS.index, text[:-1]), END]


def text_of(tokens: torch.Tensor) -> str:
    return "".join(WORDS[token] for token in tokens.tolist())


def log_probs(model: torch.nn.Module, responses_GT: torch.Tensor) -> torch.Tensor:
    """(G, T): of each response token, given the prompt and the tokens before it."""
    prompt = torch.tensor(PROMPT).expand(len(responses_GT), -1)
    logits = model(torch.cat([prompt, responses_GT], dim=1)).logits[:, len(PROMPT) - 1 : -1]
    return logits.log_softmax(-1).gather(2, responses_GT[:, :, None])[:, :, 0]


def tiny_policy(seed: int) -> Any:
    """A Qwen2 that was trained (SFT) on lists in any order: it knows what a list is and nothing of the user."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(WORDS), num_key_value_heads=2, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(80):
        orders = [torch.randperm(len(CATALOG))[:N].tolist() for _ in range(32)]
        lists = [torch.tensor(tokens_of([CATALOG[item] for item in order])) for order in orders]
        demonstrations = torch.nn.utils.rnn.pad_sequence(lists, batch_first=True, padding_value=END)
        loss = -log_probs(model, demonstrations).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def step(seed: int = 0) -> dict[str, Any]:
    """All that happens, in its order; returns what a test compares with what the trainer computes."""
    model = tiny_policy(seed)

    # 1. Sample: G responses to the prompt, at temperature 1 and without cuts, so that they are the policy's own.
    with torch.no_grad():
        sampled = model.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            do_sample=True,
            top_k=0,
            num_return_sequences=G,
            max_new_tokens=40,
            eos_token_id=END,
            pad_token_id=END,
        )
    responses_GT = sampled[:, len(PROMPT) :]
    mask_GT = ((responses_GT == END).cumsum(1) - (responses_GT == END).long() == 0).long()  # up to the first end
    print(f"the conversation: {text_of(torch.tensor(PROMPT))!r}; the user then took {LIKED[0]} and {LIKED[1]}\n")

    # 2. Tokens -> ranks: which tokens write which item. Lines are ranks; the end belongs to the last item.
    table = table_from_bytes([word.encode() for word in WORDS])
    ranks_GT = token_rank_ids(responses_GT, mask_GT, table, [END])

    # 3. Text -> relevance -> returns: is item k in the catalog, new, liked? One number for each rank of each list.
    matcher = make_matcher(Catalog.from_items(CATALOG), ListSettings(num_items=N))
    texts = [text_of(tokens) for tokens in responses_GT]
    relevance = [matcher.match_lines(split_lines(text)[:N], LIKED, SEEN).relevance for text in texts]
    returns_GK = torch.tensor([rank_returns(relevant, N) for relevant in relevance])

    # 4. Returns -> advantages: how much better than the other lists at the same rank? Items behind the N-th, and an end
    # that comes too early, have -0.1.
    advantages_GK = compute_rank_advantages(returns_GK, uid=["this conversation"] * G)
    is_end_GT = stop_token_mask(responses_GT, mask_GT, [END])
    units_GT, advantages_GT = assign_units(ranks_GT, advantages_GK, is_end_GT, N)

    # 5. The loss of eq. 6: w is a ratio of geometric means over a rank's tokens; here, with one update, w = 1.
    log_prob_GT = log_probs(model, responses_GT)
    old_log_prob_GT = log_prob_GT.detach()
    settings, counts = RankLossSettings(num_ranks=N), BatchCounts(global_batch_size=G)
    loss, _ = compute_rank_policy_loss(log_prob_GT, advantages_GT, units_GT, settings, counts)

    # 6. One step of the optimizer.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99))
    loss.backward()
    gradient = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    optimizer.step()

    # The gain: ranks of a positive advantage are likelier now, those of a negative one are not.
    with torch.no_grad():
        new_log_prob_GT = log_probs(model, responses_GT)
        new_loss, _ = compute_rank_policy_loss(
            new_log_prob_GT, advantages_GT, units_GT, settings, counts, old_log_prob_BT=old_log_prob_GT
        )
    for row, text in enumerate(texts):
        print(f"list {row + 1}  log-prob of a rank, before -> after")
        for rank, line in enumerate(split_lines(text)[:N]):
            of_rank = ranks_GT[row] == rank
            before, after = (float(values[row][of_rank].sum()) for values in (old_log_prob_GT, new_log_prob_GT))
            figures = f"return {returns_GK[row, rank]:.0f}  advantage {advantages_GK[row, rank]:+.2f}"
            print(f"  {line:22}  {figures}  {before:6.2f} -> {after:6.2f}")
    gain = loss.item() - new_loss.item()
    print(f"\nloss {loss.item():+.4f} before the update, {new_loss.item():+.4f} after it: a gain of {gain:.4f}")
    return {
        "responses": [tokens[mask.bool()].tolist() for tokens, mask in zip(responses_GT, mask_GT, strict=True)],
        "texts": texts,
        "advantages": advantages_GT,
        "units": units_GT,
        "loss": loss.item(),
        "gradient": gradient,
        "gain": gain,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)  # tensors this small are slower with more
    step()
