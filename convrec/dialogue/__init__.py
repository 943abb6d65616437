"""Conversations in which the model may ask before it recommends. docs/explanation/method.md 10.

`turns` is the grammar of a turn, `attributes` what can be asked about, `users` who answers, `play` a conversation from
its first turn to its list, and `credit` what a question earns.
"""
