"""Evaluate arithmetic expressions. Only numbers, operators and known functions are evaluated, never Python code."""

import ast
import math
import operator
from collections.abc import Callable, Mapping

Number = int | float

_MAX_BITS = 4096
"""Of an integer, about 1,200 digits: larger powers and products would take time and memory."""
_MAX_FACTORIAL = 400

_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS: Mapping[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_SYMBOLS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})


def evaluate(expression: str) -> Number:
    """Return the value. Raise `ValueError` with what is wrong with the expression."""
    # People write powers with ^, which is another operator in Python.
    text = expression.translate(_SYMBOLS).replace("^", "**").strip()
    try:
        value = _evaluate_node(ast.parse(text, mode="eval").body)
        float(value)  # an integer may be larger than any number that a JSON reader can hold
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"{expression!r} is not an arithmetic expression, such as (2 + 3) * 4.5") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None
    except TypeError as error:
        raise ValueError(f"a function has the wrong arguments: {error}") from None
    return value


def _evaluate_node(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _check_size(number)
        case ast.BinOp(left, ast.Pow(), right):
            return _raise_to_power(_evaluate_node(left), _evaluate_node(right))
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATORS:
            return _check_size(_OPERATORS[type(operation)](_evaluate_node(left), _evaluate_node(right)))
        case ast.UnaryOp(sign, operand) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_evaluate_node(operand))
        case ast.Name(name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Call(ast.Name(name), arguments, []) if name in _FUNCTIONS:
            return _check_size(_FUNCTIONS[name](*map(_evaluate_node, arguments)))
        case ast.Name(name) | ast.Call(ast.Name(name)):
            known = ", ".join([*_CONSTANTS, *_FUNCTIONS])
            raise ValueError(f"{name!r} is unknown; there are {known}")
    raise ValueError("only numbers, the operators + - * / // % **, parentheses and functions can be used")


def _raise_to_power(base: Number, exponent: Number) -> Number:
    # Checked before it is computed: 9**9**9 would take minutes.
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _MAX_BITS:
        raise ValueError("the result is too large")
    value: object = base**exponent
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    assert isinstance(value, int | float)  # noqa: S101 a power of real numbers is real or complex
    return _check_size(value)


def _check_size(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ValueError("the result is too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("the result is too large, or not a number")
    return value


def _factorial(number: Number) -> int:
    if not isinstance(number, int) or not 0 <= number <= _MAX_FACTORIAL:
        raise ValueError(f"factorial takes a whole number from 0 to {_MAX_FACTORIAL}")
    return math.factorial(number)


def _round(number: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 15:
        raise ValueError("round takes a whole number of digits, at most 15")
    return round(number, digits) if digits else round(number)


_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs,
    "round": _round,
    "floor": math.floor,
    "ceil": math.ceil,
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "degrees": math.degrees,
    "radians": math.radians,
    "factorial": _factorial,
}
