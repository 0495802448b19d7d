-- Subscriptions of a software company: surrogate keys throughout, join tables with an id of their own.
CREATE TABLE countries (iso_code char(2) PRIMARY KEY, name text NOT NULL, in_eu boolean NOT NULL);
CREATE TABLE currencies (code char(3) PRIMARY KEY, name text NOT NULL, minor_units smallint NOT NULL);
CREATE TABLE subscription_states (id smallint PRIMARY KEY, name text NOT NULL, bills boolean NOT NULL);
CREATE TABLE accounts (
  id bigint PRIMARY KEY, parent_account_id bigint REFERENCES accounts, name text NOT NULL,
  country_code char(2) NOT NULL REFERENCES countries, billing_email text, created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL, deleted_at timestamptz);
CREATE TABLE users (
  id bigint PRIMARY KEY, email text NOT NULL UNIQUE, username text NOT NULL UNIQUE, name text, encrypted_password text,
  otp_secret text, locale text, sign_in_count int NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
CREATE TABLE memberships (
  id bigint PRIMARY KEY, account_id bigint NOT NULL REFERENCES accounts, user_id bigint NOT NULL REFERENCES users,
  invited_by_id bigint REFERENCES users, role text NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL,
  UNIQUE (account_id, user_id));
CREATE TABLE user_settings (
  user_id bigint PRIMARY KEY REFERENCES users, theme text, digest_interval text, updated_at timestamptz NOT NULL);
CREATE TABLE products (
  id bigint PRIMARY KEY, sku text NOT NULL UNIQUE, name text NOT NULL, description text, active boolean NOT NULL,
  created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
CREATE TABLE prices (
  id bigint PRIMARY KEY, product_id bigint NOT NULL REFERENCES products, currency_code char(3) NOT NULL REFERENCES currencies,
  unit_amount numeric(12,2) NOT NULL, billing_interval text NOT NULL, active boolean NOT NULL, created_at timestamptz NOT NULL);
CREATE TABLE coupons (
  id bigint PRIMARY KEY, code text NOT NULL UNIQUE, percent_off numeric(5,2), redeem_by date, created_at timestamptz NOT NULL);
CREATE TABLE product_features (
  product_id bigint REFERENCES products, feature text, quantity int, PRIMARY KEY (product_id, feature));
CREATE TABLE payment_methods (
  id bigint PRIMARY KEY, account_id bigint NOT NULL REFERENCES accounts, kind text NOT NULL, card_brand text, last4 char(4),
  gateway_token text NOT NULL, expires_on date, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
CREATE TABLE subscriptions (
  id bigint PRIMARY KEY, account_id bigint NOT NULL REFERENCES accounts, state_id smallint NOT NULL REFERENCES subscription_states,
  payment_method_id bigint REFERENCES payment_methods, started_on date NOT NULL, ends_on date,
  created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL, lock_version int NOT NULL);
CREATE TABLE subscription_items (
  id bigint PRIMARY KEY, subscription_id bigint NOT NULL REFERENCES subscriptions, price_id bigint NOT NULL REFERENCES prices,
  quantity int NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL, UNIQUE (subscription_id, price_id));
CREATE TABLE subscription_coupons (
  subscription_id bigint REFERENCES subscriptions, coupon_id bigint REFERENCES coupons, applied_at timestamptz NOT NULL,
  PRIMARY KEY (subscription_id, coupon_id));
CREATE TABLE invoices (
  id bigint PRIMARY KEY, number text NOT NULL UNIQUE, account_id bigint NOT NULL REFERENCES accounts,
  subscription_id bigint REFERENCES subscriptions, corrects_invoice_id bigint REFERENCES invoices,
  currency_code char(3) NOT NULL REFERENCES currencies, status text NOT NULL, total numeric(14,2) NOT NULL,
  issued_on date NOT NULL, due_on date, paid_at timestamptz, updated_at timestamptz NOT NULL);
CREATE TABLE invoice_lines (
  invoice_id bigint REFERENCES invoices, line_no int, subscription_item_id bigint REFERENCES subscription_items,
  description text NOT NULL, quantity int NOT NULL, amount numeric(14,2) NOT NULL, PRIMARY KEY (invoice_id, line_no));
CREATE TABLE payments (
  id bigint PRIMARY KEY, invoice_id bigint NOT NULL REFERENCES invoices, payment_method_id bigint REFERENCES payment_methods,
  amount numeric(14,2) NOT NULL, status text NOT NULL, failure_reason text, created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL);
CREATE TABLE usage_records (
  id bigint, subscription_item_id bigint NOT NULL REFERENCES subscription_items, quantity numeric(18,4) NOT NULL,
  recorded_at timestamptz NOT NULL, PRIMARY KEY (id));
CREATE TABLE audit_log (
  id bigint PRIMARY KEY, account_id bigint NOT NULL REFERENCES accounts, user_id bigint REFERENCES users, action text NOT NULL,
  details jsonb, ip_address inet, created_at timestamptz NOT NULL);
