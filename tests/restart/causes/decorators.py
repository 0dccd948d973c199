import functools


def plus(number):
    def decorate(function):
        @functools.wraps(function)
        def wrapped(x):
            return function(x) + number

        return wrapped

    return decorate


@plus(1)
def unrelated(x):
    return x * 5


@plus(2)
def shifted(x):
    return x - 1
