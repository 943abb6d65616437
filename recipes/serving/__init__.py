"""`convrec serve`: trained models behind HTTP, with Ray Serve, FastAPI and vLLM's engine.

`front` is the deployment that speaks HTTP: `http` has its routes, `gate` its limits, `metrics` its figures, page/ the
chat page. `model` is the deployment of one model, with its engine; `chat` is vLLM's chat completions on that engine.
`app` puts them together for Ray Serve, and `local` starts Ray for them on one machine.
"""
