"""The shop of the tests with a ledger. Its tables forbid nothing, so that damage can be seen."""

TABLES = (
    "CREATE TABLE invoices (number SERIAL PRIMARY KEY, order_id INTEGER NOT NULL, token BIGINT NOT NULL)",
    "CREATE TABLE balances (account INTEGER PRIMARY KEY, cents BIGINT NOT NULL, bookings INTEGER NOT NULL)",
    # What the SQL side saw of tokens: a row wherever one fell.
    "CREATE TABLE fallen (resource TEXT NOT NULL, was BIGINT NOT NULL, became BIGINT NOT NULL)",
    """CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.token < OLD.token THEN INSERT INTO fallen VALUES (NEW.resource, OLD.token, NEW.token); END IF;
    RETURN NEW; END $$""",
    "CREATE TRIGGER watch AFTER UPDATE ON fencepost_fences FOR EACH ROW EXECUTE FUNCTION watch()",
)
