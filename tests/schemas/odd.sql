-- What a stranger's database may have: reserved words, names that meet those of the vault, keys in another order.
CREATE TABLE "select" ("from" int PRIMARY KEY, "order" text, "table" text, "group" int, "null" text, "end" text);
CREATE TABLE "order" (id int PRIMARY KEY, select_from int REFERENCES "select", "values" text, "when" text, "timestamp" text);
CREATE TABLE "no" (code char(2) PRIMARY KEY, "true" text);
CREATE TABLE customer (
  customer int PRIMARY KEY, "HK_Customer" text, "HD_customer_details" text, "Load_Date" text, "Is_Deleted" text,
  "Source_Seq" text, "_Op" text, "Valid_From" text, "Customer_ID" text);
CREATE TABLE account (
  id int PRIMARY KEY, account_id int, "Account" text, hk_account text, customer_id int REFERENCES customer,
  collision_code text, status text);
CREATE TABLE status (id int PRIMARY KEY, status text, account_id int REFERENCES account);
CREATE TABLE "Straßen-Käufe" (
  "Schlüssel" int PRIMARY KEY, "Größe" text, "größe" text, "GRÖSSE" text, "naïve café" text, "日本" text, "a b" text, "a-b" text);
CREATE TABLE "Käufer" ("Nr." int PRIMARY KEY, "Straße Nr" int REFERENCES "Straßen-Käufe", "E-Mail" text);
CREATE TABLE "Items" (id int PRIMARY KEY, v text);
CREATE TABLE items (id int PRIMARY KEY, v text, item_id int REFERENCES "Items", parent int REFERENCES items);
-- Keys that other tables name in another order, by a part of it, or twice
CREATE TABLE parts (maker int, number int, rev int, serial text UNIQUE, label text, PRIMARY KEY (maker, number, rev));
CREATE TABLE uses (
  id int PRIMARY KEY, r int, m int, n int, other text REFERENCES parts (serial), note text,
  FOREIGN KEY (n, r, m) REFERENCES parts (number, rev, maker));
CREATE TABLE part_of (
  m1 int, n1 int, r1 int, m2 int, n2 int, r2 int, quantity int, PRIMARY KEY (m2, r1, n1, m1, n2, r2),
  FOREIGN KEY (m1, n1, r1) REFERENCES parts, FOREIGN KEY (r2, m2, n2) REFERENCES parts (rev, maker, number));
CREATE TABLE friends (
  id int PRIMARY KEY, a_id int NOT NULL REFERENCES customer, b_id int NOT NULL REFERENCES customer, since text,
  UNIQUE (b_id, a_id));
-- Links that meet, and a column that is called as the key of a link's row
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, a_id int REFERENCES a, v text);
CREATE TABLE a_b (a_id int REFERENCES a, b_id int REFERENCES b, a_b text, PRIMARY KEY (b_id, a_id));
CREATE TABLE b_a (id int PRIMARY KEY, a_id int NOT NULL REFERENCES a, b_id int NOT NULL REFERENCES b, b_a_row text);
