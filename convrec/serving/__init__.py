"""A trained model as a recommender: a served catalog, vLLM's asynchronous engine, and the class over both. No Ray.

`items` has the catalog that changes, `snapshot` a state of it by id and title, with the file that the engine decodes
with, `columns` what filters it and goes with items, `mentions` how often they are wanted, `why` sentences of both,
`conversation` reads what was said, `lists` says what a list is, `engine` is vLLM in a process of its own, and
`recommender` is the class `Recommender`.
"""
