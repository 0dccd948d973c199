SCALE = 2.0


def level3(x):
    return x * SCALE


def level2(x):
    return level3(x)


def level1(x):
    return level2(x)
