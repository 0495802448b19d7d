"""The bank workload: rounds of inserts, updates and deletes that are known in advance.

Round 1 inserts three users and two accounts, updates one of each and deletes a user without accounts. Each later round
inserts a user, updates all three, deletes the previous newcomer, and inserts and updates two accounts. All accounts
belong to the first user, who is never deleted. Ids and values depend only on the round's number, so the same rounds
produce the same rows in every database.
"""

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import LiteralString
from uuid import UUID, uuid5

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse_samples.database import session

NAMESPACE = UUID("5b1c9f0e-6d0a-4c38-9a5e-7f2f3d9b8a11")
CURRENCIES = ("USD", "EUR", "GBP", "KES")
NAMES = ("Amina Odhiambo", "Bruno Keller", "Chiara Rossi", "Deng Wei", "Elif Kaya", "Farid Haddad")

INSERT_USER: LiteralString = "INSERT INTO users (id, email, name, created_at) VALUES (%s, %s, %s, current_date)"
INSERT_ACCOUNT: LiteralString = (
    "INSERT INTO accounts (id, user_id, currency, balance, created_at) VALUES (%s, %s, %s, %s, current_date)"
)
UPDATE_USER: LiteralString = "UPDATE users SET email = %s WHERE id = %s"
UPDATE_ACCOUNT: LiteralString = "UPDATE accounts SET balance = balance + %s WHERE id = %s"
DELETE_USER: LiteralString = "DELETE FROM users WHERE id = %s"


@dataclass(frozen=True)
class Round:
    """The numbers of the users and accounts that a round changes."""

    number: int
    new_users: tuple[int, ...]
    new_accounts: tuple[int, ...]
    updated_users: tuple[int, ...]
    updated_accounts: tuple[int, ...]
    deleted_users: tuple[int, ...]


@dataclass(frozen=True)
class RoundReport:
    """Rows inserted, updated and deleted by a round, per table."""

    round: int
    users: dict[str, int]
    accounts: dict[str, int]

    def as_dict(self) -> dict[str, object]:
        """Plain values, for `--json`."""
        return asdict(self)


def plan(number: int) -> Round:
    """The changes of round `number`, counted from 1."""
    if number == 1:
        return Round(1, (1, 2, 3), (1, 2), (2,), (1,), (3,))
    newcomer = number + 2
    leaver = 2 if number == 2 else newcomer - 1
    return Round(
        number,
        new_users=(newcomer,),
        new_accounts=(2 * number - 1, 2 * number),
        updated_users=(1, leaver, newcomer),
        updated_accounts=(2 * number - 3, 2 * number - 2),
        deleted_users=(leaver,),
    )


def run(url: str, number: int | None = None) -> RoundReport:
    """Runs the next round: inserts, updates and deletes in three transactions.

    Raises LakehouseError if `number` is given and is not the next round.
    """
    with session(url, "bank") as connection:
        due = _next_round(connection)
        if number is not None and number != due:
            raise LakehouseError(
                f"source 'bank': round {number} cannot run, the next one is {due}: "
                "leave --round out to run it, or start with an empty database"
            )
        return _run_round(connection, plan(due))


def _next_round(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT count(*) FROM accounts").fetchone()
    return (row[0] if row else 0) // 2 + 1


def _run_round(connection: psycopg.Connection, plan: Round) -> RoundReport:
    with connection.transaction():
        for user in plan.new_users:
            _change(connection, INSERT_USER, _id("user", user), _email(user, 0), NAMES[user % len(NAMES)])
        for account in plan.new_accounts:
            currency = CURRENCIES[account % len(CURRENCIES)]
            _change(connection, INSERT_ACCOUNT, _id("account", account), _id("user", 1), currency, _amount(account))
    with connection.transaction():
        for user in plan.updated_users:
            _change(connection, UPDATE_USER, _email(user, plan.number), _id("user", user))
        for account in plan.updated_accounts:
            _change(connection, UPDATE_ACCOUNT, _amount(plan.number), _id("account", account))
    with connection.transaction():
        for user in plan.deleted_users:
            _change(connection, DELETE_USER, _id("user", user))
    users = {"c": len(plan.new_users), "u": len(plan.updated_users), "d": len(plan.deleted_users)}
    accounts = {"c": len(plan.new_accounts), "u": len(plan.updated_accounts), "d": 0}
    return RoundReport(plan.number, users, accounts)


def _change(connection: psycopg.Connection, statement: LiteralString, *values: object) -> None:
    if connection.execute(statement, values).rowcount != 1:
        raise LakehouseError(
            "source 'bank': a row of an earlier round is missing, so the rounds cannot continue: "
            "they need a database that nothing else changes"
        )


def _id(kind: str, number: int) -> UUID:
    return uuid5(NAMESPACE, f"{kind} {number}")


def _email(user: int, version: int) -> str:
    return f"user{user}.v{version}@bank.example.com" if version else f"user{user}@bank.example.com"


def _amount(number: int) -> Decimal:
    return Decimal(number) * Decimal("125.25")
