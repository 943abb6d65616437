"""An asynchronous client for OpenAI-compatible chat endpoints (teacher, judge) that caches every answer on disk.

The endpoint comes from the environment: LLM_BASE_URL (`https://host/v1`), LLM_MODEL and, if the server needs one,
LLM_API_KEY. A role has its own endpoint if its ROLE_BASE_URL is set (TEACHER_BASE_URL, JUDGE_BASE_URL, ...); then
ROLE_MODEL and ROLE_API_KEY are used and all LLM_* variables are ignored, so that no key is sent to another host.

    llm = LLM(endpoint("teacher"), cache="data/answers", concurrency=16)
    answers = llm.ask_all(prompts, label="teacher", temperature=0.0, max_tokens=512)
    print(llm.usage)

The `openai` library sends and retries (lost connections, 408, 409, 429, 5xx). This client adds a limit on requests in
flight, a pause of all requests when the server asks one to wait, deduplication of equal requests, the cache, progress
lines without a terminal, and retries of replies with status 200 that are not completions (as for a 502).
The cache key is everything that determines an answer (model, messages, sampling parameters; not the URL), so rename a
model that you trained again. Refusals are not cached: they cost nothing, and the server may change.
"""

from convrec.llm.answers import Answer, AnswerCache, Messages, NoAnswer, Usage, merge_sampling
from convrec.llm.client import LLM, Endpoint, endpoint

__all__ = ["LLM", "Answer", "AnswerCache", "Endpoint", "Messages", "NoAnswer", "Usage", "endpoint", "merge_sampling"]
