"""A script as there are many: it goes through a list and pays money back. Three lines put the dangerous part behind the plane."""

import os
from pathlib import Path

from cortex_plane import Client, CortexError

plane = Client.here()  # line 1, after the import: CORTEX_URL and CORTEX_KEY, or the plane of `make up` in this folder


@plane.guard("refund", agent="refund-script", risk="high")  # line 2: the same function, now with permission
def refund(order: str, amount: float) -> str:
    """Give a customer so much of their money back."""
    with Path(os.environ["EXAMPLE_FOLDER"], "world.txt").open("a") as bank:
        bank.write(f"- refund {amount:g} for {order}\n")
    return f"{amount:g} refunded for {order}"


def main() -> None:
    for order, amount in [("1001", 12), ("1002", 45), ("1003", 9000)]:
        try:
            print("script ", refund(order, amount), flush=True)
        except CortexError as error:  # line 3: what was denied did not happen
            print("script ", error.message, flush=True)


if __name__ == "__main__":
    main()
