"""CRC-32 equals division of polynomials over GF(2), whose remainder notices each change of one or two bits."""

from __future__ import annotations

import numpy as np

from dragoman.io.checksums import Crc32

POLYNOMIAL = 0x104C11DB7
"""x³² + x²⁶ + x²³ + x²² + x¹⁶ + x¹² + x¹¹ + x¹⁰ + x⁸ + x⁷ + x⁵ + x⁴ + x² + x + 1 (ISO 3309, section 4.5.2)."""
PRIME_FACTORS = (3, 5, 17, 257, 65537)
"""2³² - 1 is their product."""


def compute_reference(content: bytes) -> str:
    """Return the CRC-32 by long division: the lowest bit of each byte comes first, and ones stand before and behind."""
    bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little").tolist() + [0] * 32
    bits[:32] = [1 - bit for bit in bits[:32]]
    remainder = 0
    for bit in bits:
        remainder = remainder << 1 | bit
        if remainder >> 32:
            remainder ^= POLYNOMIAL
    return f"{int(f'{remainder ^ 0xFFFFFFFF:032b}'[::-1], 2):08x}"


def test_crc32_of_parts_equals_polynomial_division() -> None:
    content = np.random.default_rng(0).bytes(1001)
    checksum = Crc32()
    for start, stop in ((0, 1), (1, 640), (640, 1001)):
        checksum.update(memoryview(content)[start:stop])
    assert checksum.hexdigest() == compute_reference(content)


def multiply(left: int, right: int) -> int:
    """Return the product of two polynomials modulo the polynomial."""
    product = 0
    while right:
        product ^= left if right & 1 else 0
        left, right = left << 1, right >> 1
        left ^= POLYNOMIAL if left >> 32 else 0
    return product


def raise_x(exponent: int) -> int:
    """Return x to a power modulo the polynomial."""
    result, square = 1, 2
    while exponent:
        result = multiply(result, square) if exponent & 1 else result
        square, exponent = multiply(square, square), exponent >> 1
    return result


def test_two_changed_bits_in_512_mib_are_noticed() -> None:
    """Bits i and j cancel each other only where x to the power of i - j is 1, and the order of x is 2³² - 1."""
    assert raise_x(2**32 - 1) == 1
    assert all(raise_x((2**32 - 1) // factor) != 1 for factor in PRIME_FACTORS)
