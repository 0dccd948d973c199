"""What may stand in a trace that is stored: rules by instruction, type and callable of Python's.

`trace.observer` asks them at the places of Dynamo's where user code is interpreted. What no rule
knows is refused, and the reason says what has no rule.
"""
