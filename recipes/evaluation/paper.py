"""The paper's figures, to stand beside a result: Reddit-v2 test split, protocol `paper`, lists of 20, on-policy.

Source: arXiv 2510.20150 (Rank-GRPO, ICLR 2026), the tables of results on Reddit-v2. They compare with a result on that
test split only; a row without a number was not among the figures used here.
"""

PAPER = (
    # model, Recall@20, NDCG@20
    ("Qwen2.5-0.5B SFT", 0.1308, 0.0704),
    ("Qwen2.5-0.5B GRPO", 0.1803, 0.0945),
    ("Qwen2.5-0.5B Rank-GRPO log_decay", 0.1946, 0.1017),
    ("Qwen2.5-0.5B Rank-GRPO exp_inf", 0.2047, 0.1079),
    ("Qwen2.5-0.5B GRPO, mu 2", 0.1538, 0.0852),
    ("Qwen2.5-0.5B GSPO, mu 2", 0.1641, 0.0896),
    ("Qwen2.5-0.5B Rank-GRPO exp_inf, mu 2", 0.1899, 0.1025),
    ("Llama-3.2-1B Rank-GRPO exp_inf", 0.2165, 0.1153),
    ("Llama-3.2-3B Rank-GRPO exp_inf", 0.2368, 0.1283),
    ("GPT-4o zero-shot", 0.2147, 0.1197),
    ("CRAG", 0.2212, 0.1227),
)


def paper_table() -> str:
    """What `--paper` prints."""
    width = max(len(name) for name, _, _ in PAPER)
    lines = [f"{'the paper, Reddit-v2 test (arXiv 2510.20150)':<{width}}  Recall@20  NDCG@20"]
    lines += [f"{name:<{width}}  {recall:>9.4f}  {ndcg:>7.4f}" for name, recall, ndcg in PAPER]
    return "\n".join(lines)
