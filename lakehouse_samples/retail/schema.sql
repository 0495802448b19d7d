-- A shop with five stores. Sales start out empty: `lakehouse simulate retail` makes them.
CREATE TABLE IF NOT EXISTS stores (
    store_id   serial PRIMARY KEY,
    store_name text NOT NULL,
    city       text NOT NULL,
    state      text NOT NULL,
    opened_at  timestamp DEFAULT now()
);

CREATE TABLE IF NOT EXISTS products (
    product_id   serial PRIMARY KEY,
    product_name text NOT NULL,
    category     text NOT NULL,
    unit_price   numeric(10, 2) NOT NULL,
    created_at   timestamp DEFAULT now()
);

CREATE TABLE IF NOT EXISTS customers (
    customer_id  serial PRIMARY KEY,
    first_name   text NOT NULL,
    last_name    text NOT NULL,
    email        text UNIQUE NOT NULL,
    loyalty_tier text DEFAULT 'BRONZE',
    created_at   timestamp DEFAULT now()
);

-- customer_id is null for an anonymous sale; synced_at is null until an export has taken the row along.
CREATE TABLE IF NOT EXISTS transactions (
    txn_id         serial PRIMARY KEY,
    store_id       integer NOT NULL REFERENCES stores,
    customer_id    integer REFERENCES customers,
    txn_timestamp  timestamp NOT NULL DEFAULT now(),
    total_amount   numeric(12, 2) NOT NULL DEFAULT 0,
    payment_method text NOT NULL DEFAULT 'CARD',
    synced_at      timestamp
);

CREATE TABLE IF NOT EXISTS transaction_items (
    item_id    serial PRIMARY KEY,
    txn_id     integer NOT NULL REFERENCES transactions,
    product_id integer NOT NULL REFERENCES products,
    quantity   integer NOT NULL DEFAULT 1,
    unit_price numeric(10, 2) NOT NULL,
    line_total numeric(12, 2) NOT NULL,
    synced_at  timestamp
);

-- The export looks for rows it has not taken yet, so only those are indexed.
CREATE INDEX IF NOT EXISTS idx_txn_synced ON transactions (synced_at) WHERE synced_at IS NULL;
CREATE INDEX IF NOT EXISTS idx_items_synced ON transaction_items (synced_at) WHERE synced_at IS NULL;

INSERT INTO stores (store_name, city, state)
SELECT row.*
FROM (VALUES
    ('Downtown Flagship', 'Seattle', 'WA'),
    ('Mall of Pacific', 'San Francisco', 'CA'),
    ('Eastside Express', 'Bellevue', 'WA'),
    ('Harbor Point', 'Portland', 'OR'),
    ('Valley Center', 'San Jose', 'CA')
) AS row
WHERE NOT EXISTS (SELECT FROM stores);

INSERT INTO products (product_name, category, unit_price)
SELECT row.*
FROM (VALUES
    ('Organic Coffee Beans 1lb', 'Grocery', 14.99),
    ('Wireless Earbuds Pro', 'Electronics', 79.99),
    ('Cotton T-Shirt', 'Apparel', 24.99),
    ('Stainless Water Bottle', 'Home', 19.99),
    ('Running Shoes', 'Footwear', 129.99),
    ('Yoga Mat Premium', 'Fitness', 39.99),
    ('LED Desk Lamp', 'Electronics', 44.99),
    ('Organic Protein Bar 12pk', 'Grocery', 29.99),
    ('Backpack 30L', 'Accessories', 59.99),
    ('Sunscreen SPF50', 'Personal Care', 12.99),
    ('Bluetooth Speaker', 'Electronics', 49.99),
    ('Trail Mix 2lb', 'Grocery', 9.99),
    ('Insulated Lunch Bag', 'Home', 22.99),
    ('Fitness Tracker Band', 'Electronics', 89.99),
    ('Bamboo Cutting Board', 'Home', 17.99)
) AS row
WHERE NOT EXISTS (SELECT FROM products);

INSERT INTO customers (first_name, last_name, email, loyalty_tier)
SELECT row.*
FROM (VALUES
    ('Alice', 'Chen', 'alice.chen@example.com', 'GOLD'),
    ('Bob', 'Martinez', 'bob.martinez@example.com', 'SILVER'),
    ('Carol', 'Johnson', 'carol.j@example.com', 'BRONZE'),
    ('David', 'Kim', 'david.kim@example.com', 'GOLD'),
    ('Eve', 'Patel', 'eve.patel@example.com', 'PLATINUM'),
    ('Frank', 'Lopez', 'frank.lopez@example.com', 'BRONZE'),
    ('Grace', 'Wang', 'grace.wang@example.com', 'SILVER'),
    ('Hank', 'Brown', 'hank.brown@example.com', 'BRONZE'),
    ('Iris', 'Davis', 'iris.davis@example.com', 'GOLD'),
    ('Jack', 'Wilson', 'jack.wilson@example.com', 'SILVER')
) AS row
WHERE NOT EXISTS (SELECT FROM customers);
