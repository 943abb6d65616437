"""Chat completions by vLLM's own serving classes, on a running engine."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels

from convrec.data.chat import split_control_tokens
from recipes.serving.errors import Refused

try:
    from vllm.entrypoints.openai.engine.protocol import ErrorResponse
    from vllm.entrypoints.serve.render.serving import OpenAIServingRender
    from vllm.entrypoints.serve.utils.error_response import create_error_response
except ImportError:  # vLLM 0.29 and newer
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.renderers.online_renderer import OnlineRenderer

    OpenAIServingRender = None


class ChatCompletions:
    """Chat completions of one model; special tokens written in a message stay text."""

    def __init__(self, engine: Any, name: str, path: str) -> None:
        """Set up vLLM's serving classes; the methods must run in the engine's event loop.

        Args:
            engine: vLLM's AsyncLLM.
            name: of the model, in requests.
            path: the model's folder.
        """
        models = OpenAIServingModels(engine, [BaseModelPath(name=name, model_path=path)])
        common: dict[str, Any] = {
            "request_logger": None,
            "chat_template": None,  # the model's own; requests cannot bring another
            "chat_template_content_format": "string",
        }
        self.tokenizer = engine.renderer.tokenizer
        render: dict[str, Any] = {}
        if OpenAIServingRender:
            settings = (engine.model_config, engine.renderer, models.registry)
            render["openai_serving_render"] = OpenAIServingRender(*settings, **common)
        else:
            render["online_renderer"] = OnlineRenderer(engine.model_config, engine.renderer, **common)
        self.serving = OpenAIServingChat(engine, models, "assistant", **render, **common)

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request with OpenAI's chat.completion.

        Args:
            request: fields of ChatRequest.

        Raises:
            Refused: vLLM refuses the request.
        """
        completion = await self._create(request)
        return completion.model_dump(mode="json", exclude_none=True)

    async def stream(self, request: dict[str, Any]) -> AsyncIterator[str]:
        """Answer a request with OpenAI's server-sent events, as text.

        Args:
            request: fields of ChatRequest.

        Raises:
            Refused: vLLM refuses the request.
        """
        async for chunk in await self._create(request | {"stream": True}):
            yield chunk

    async def _create(self, request: dict[str, Any]) -> Any:
        messages = split_control_tokens(request["messages"], self.tokenizer)
        try:
            chat_request = ChatCompletionRequest(**request | {"messages": messages})
            answer = await self.serving.create_chat_completion(chat_request)
        except ValidationError as error:  # str(error) would dump the request
            first = error.errors(include_url=False, include_input=False)[0]
            field = str(first["loc"][0]) if first["loc"] else None
            raise Refused(400, first["msg"].removeprefix("Value error, "), field) from None
        except Exception as error:
            answer = create_error_response(error)  # as vLLM's own server does: 4xx for the request's fault
            if answer.error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
        if isinstance(answer, ErrorResponse):
            raise Refused(answer.error.code, answer.error.message, answer.error.param)
        return answer
