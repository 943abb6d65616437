"""`convrec serve`: trained models behind HTTP, with uvicorn, FastAPI and vLLM's engine.

`http` has the routes, `gate` their limits, `metrics` their figures, page/ the chat page. `model` is one model with its
engine in a process of its own, which `replicas` calls; `chat` offers vLLM's chat completions on that engine. On one
machine, `local` runs HTTP in the command's process, and `processes` the models; on a Ray cluster, `app` deploys both.
"""
