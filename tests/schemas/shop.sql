-- A shop with a warehouse: German names, double references, a reference by another key, a partitioned log.
CREATE TABLE "Größen" (kürzel varchar(5) PRIMARY KEY, bezeichnung text NOT NULL, reihenfolge int);
CREATE TABLE shipping_methods (code text PRIMARY KEY, label text NOT NULL, fee numeric(8,2) NOT NULL);
CREATE TABLE customers (
  customer_no int PRIMARY KEY, first_name text NOT NULL, last_name text NOT NULL, email text NOT NULL, date_of_birth date,
  loyalty_tier text, created_at timestamp NOT NULL, modified_at timestamp NOT NULL);
CREATE TABLE addresses (
  id int PRIMARY KEY, customer_no int NOT NULL REFERENCES customers, street text NOT NULL, postal_code text NOT NULL,
  city text NOT NULL, country text NOT NULL);
CREATE TABLE categories (id int PRIMARY KEY, parent_id int REFERENCES categories, name text NOT NULL, slug text NOT NULL UNIQUE);
CREATE TABLE suppliers (id int PRIMARY KEY, name text NOT NULL, contact_phone text, rating numeric(3,1));
CREATE TABLE products (
  id int PRIMARY KEY, sku varchar(20) NOT NULL UNIQUE, name text NOT NULL, main_category_id int REFERENCES categories,
  "Größe" varchar(5) REFERENCES "Größen", unit_price numeric(10,2) NOT NULL, weight_kg numeric(8,3), created_at timestamp NOT NULL,
  modified_at timestamp NOT NULL);
CREATE TABLE product_categories (
  product_id int REFERENCES products, category_id int REFERENCES categories, PRIMARY KEY (product_id, category_id));
CREATE TABLE product_suppliers (
  product_id int REFERENCES products, supplier_id int REFERENCES suppliers, purchase_price numeric(10,2), lead_days int,
  PRIMARY KEY (product_id, supplier_id));
CREATE TABLE product_translations (
  product_id int REFERENCES products, locale varchar(5), title text NOT NULL, description text,
  PRIMARY KEY (product_id, locale));
CREATE TABLE warehouses (id int PRIMARY KEY, name text NOT NULL, city text NOT NULL);
CREATE TABLE stock_levels (
  warehouse_id int REFERENCES warehouses, product_id int REFERENCES products, quantity int NOT NULL, updated_at timestamp NOT NULL,
  PRIMARY KEY (warehouse_id, product_id));
CREATE TABLE orders (
  order_no int PRIMARY KEY, customer_no int NOT NULL REFERENCES customers, billing_address_id int NOT NULL REFERENCES addresses,
  shipping_address_id int REFERENCES addresses, shipping_method text NOT NULL REFERENCES shipping_methods, status text NOT NULL,
  ordered_at timestamp NOT NULL, note text, modified_at timestamp NOT NULL);
CREATE TABLE order_items (
  order_no int REFERENCES orders, position int, sku varchar(20) NOT NULL REFERENCES products (sku), quantity int NOT NULL,
  unit_price numeric(10,2) NOT NULL, discount numeric(5,2), PRIMARY KEY (order_no, position));
CREATE TABLE shipments (
  id int PRIMARY KEY, order_no int NOT NULL REFERENCES orders, warehouse_id int NOT NULL REFERENCES warehouses, carrier text,
  tracking_number text, shipped_at timestamp, delivered_at timestamp);
CREATE TABLE shipment_items (
  shipment_id int REFERENCES shipments, order_no int, position int, quantity int NOT NULL,
  PRIMARY KEY (shipment_id, order_no, position), FOREIGN KEY (order_no, position) REFERENCES order_items);
CREATE TABLE stock_movements (
  id bigint, moved_at timestamp NOT NULL, warehouse_id int NOT NULL, product_id int NOT NULL REFERENCES products,
  shipment_id int REFERENCES shipments, quantity int NOT NULL, PRIMARY KEY (id, moved_at)) PARTITION BY RANGE (moved_at);
CREATE TABLE stock_movements_2025 PARTITION OF stock_movements FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
CREATE TABLE stock_movements_2026 PARTITION OF stock_movements FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
ALTER TABLE stock_movements_2025 ADD FOREIGN KEY (warehouse_id) REFERENCES warehouses;
ALTER TABLE stock_movements_2026 ADD FOREIGN KEY (warehouse_id) REFERENCES warehouses;
CREATE TABLE reviews (
  id int PRIMARY KEY, product_id int NOT NULL REFERENCES products, customer_no int NOT NULL REFERENCES customers,
  stars smallint NOT NULL, review text, created_at timestamp NOT NULL);
