-- Users and their accounts, empty until `lakehouse simulate bank`.
CREATE TABLE IF NOT EXISTS users (
    id         uuid PRIMARY KEY,
    email      text UNIQUE NOT NULL,
    name       text NOT NULL,
    created_at date
);

CREATE TABLE IF NOT EXISTS accounts (
    id         uuid PRIMARY KEY,
    user_id    uuid REFERENCES users,
    currency   text,
    balance    numeric(15, 2),
    created_at date
);

-- A delete then carries every column of the row, not the key alone.
ALTER TABLE users REPLICA IDENTITY FULL;
ALTER TABLE accounts REPLICA IDENTITY FULL;
