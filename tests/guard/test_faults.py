"""What errors of databases mean, through every wrapper: also those that no test can provoke at will."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest
from sqlalchemy.exc import OperationalError

from fencepost.sql.faults import fault_of, short_cause


def sqlite_error(code):
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    return error


ERRORS = [
    (psycopg.errors.SerializationFailure("x"), "repeat"),
    (psycopg.errors.DeadlockDetected("x"), "repeat"),
    (psycopg.errors.UniqueViolation("x"), "duplicate"),
    (psycopg.errors.UndefinedTable("x"), "missing"),
    (psycopg.errors.IdleInTransactionSessionTimeout("x"), "away"),
    (psycopg.errors.AdminShutdown("x"), "away"),
    (psycopg.errors.ConnectionFailure("x"), "away"),
    (psycopg.OperationalError("server closed the connection unexpectedly"), "away"),
    (psycopg.errors.LockNotAvailable("x"), "repeat"),
    (psycopg.errors.ForeignKeyViolation("x"), ""),
    (psycopg.errors.InFailedSqlTransaction("x"), "aborted"),
    # Older PyMySQL gives no SQLSTATE, so the numbers must do.
    *[(pymysql.err.OperationalError(number, "x"), "repeat") for number in (1213, 1205, 1020)],
    *[(pymysql.err.OperationalError(number, "x"), "away") for number in (2006, 2013, 1927)],
    (pymysql.err.ProgrammingError(1146, "x"), "missing"),
    (pymysql.err.IntegrityError(1062, "x"), "duplicate"),
    (pymysql.err.IntegrityError(1452, "x"), ""),
    *[(sqlite_error(code), "repeat") for code in (5, 6, 517)],  # BUSY, LOCKED, BUSY_SNAPSHOT
    *[(sqlite_error(code), "duplicate") for code in (1555, 2067)],
    (sqlite_error(787), ""),  # a foreign key
    *[(error, "away") for error in (ConnectionResetError("x"), EOFError("x"), TimeoutError())],
    *[(error, "") for error in (KeyError(1213), ValueError("40001"), sqlite3.OperationalError("no such table: x"))],
]


@pytest.mark.parametrize(("error", "fault"), ERRORS, ids=lambda value: repr(value)[:60])
def test_an_error_means_the_same_alone_and_inside_sqlalchemy(error, fault):
    assert fault_of(error) == fault
    assert fault_of(OperationalError("SELECT 1", {}, error)) == fault


def test_an_error_that_the_user_raised_from_one_is_his_own():
    """It may have been dealt with: only what a wrapper of a driver carries is looked into."""
    error = RuntimeError("no stock")
    error.__cause__ = psycopg.errors.SerializationFailure("x")
    assert fault_of(error) == ""


def test_the_cause_is_told_in_the_words_of_the_driver_in_one_short_line():
    inner = psycopg.errors.SerializationFailure("could not serialize access\nCONTEXT: " + "x" * 500)
    told = short_cause(OperationalError("SELECT 1", {}, inner))
    assert told.startswith("could not serialize access CONTEXT: xxx")
    assert len(told) == 200
    assert short_cause(ConnectionResetError()) == "ConnectionResetError"
