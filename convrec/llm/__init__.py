"""An asynchronous client of any OpenAI-compatible chat endpoint (teacher, judge), with every answer kept on disk.

The address comes from the environment: LLM_BASE_URL (`https://host/v1`), LLM_MODEL and, where the server wants one,
LLM_API_KEY. A role has an endpoint of its own when its ROLE_BASE_URL is set (TEACHER_BASE_URL, JUDGE_BASE_URL, ...);
then ROLE_MODEL and ROLE_API_KEY go with it and nothing of LLM_* is used, so that no key is sent to another host.

    llm = LLM(endpoint("teacher"), cache="data/answers", concurrency=16)
    answers = llm.ask_all(prompts, label="teacher", temperature=0.0, max_tokens=512)
    print(llm.usage)

The `openai` library sends and retries (lost connections, 408, 409, 429, 5xx). What is added: a bound on requests in
flight, a pause of all of them when one is told to wait, equal requests asked once, the cache, lines of progress where
there is no terminal, and that a reply with status 200 that is no completion counts as a 502.
The cache is keyed by what determines an answer (model, messages, sampling parameters; not the address), so give a model
that you trained again another name. A refusal is not kept: it costs nothing, and the server may have changed.
"""

from convrec.llm.answers import Answer, AnswerCache, Messages, NoAnswer, Usage, merge_sampling
from convrec.llm.client import LLM, Endpoint, endpoint

__all__ = ["LLM", "Answer", "AnswerCache", "Endpoint", "Messages", "NoAnswer", "Usage", "endpoint", "merge_sampling"]
