-- Film rental after the shape of the Pagila sample, from memory: the schema that no rule was made for.
CREATE TYPE mpaa_rating AS ENUM ('G', 'PG', 'PG-13', 'R', 'NC-17');
CREATE TABLE country (country_id int PRIMARY KEY, country text NOT NULL, last_update timestamptz NOT NULL);
CREATE TABLE city (
  city_id int PRIMARY KEY, city text NOT NULL, country_id int NOT NULL REFERENCES country, last_update timestamptz NOT NULL);
CREATE TABLE address (
  address_id int PRIMARY KEY, address text NOT NULL, address2 text, district text NOT NULL,
  city_id int NOT NULL REFERENCES city, postal_code text, phone text NOT NULL, last_update timestamptz NOT NULL);
CREATE TABLE language (language_id int PRIMARY KEY, name char(20) NOT NULL, last_update timestamptz NOT NULL);
CREATE TABLE category (category_id int PRIMARY KEY, name text NOT NULL, last_update timestamptz NOT NULL);
CREATE TABLE actor (
  actor_id int PRIMARY KEY, first_name text NOT NULL, last_name text NOT NULL, last_update timestamptz NOT NULL);
CREATE TABLE film (
  film_id int PRIMARY KEY, title text NOT NULL, description text, release_year int,
  language_id int NOT NULL REFERENCES language, original_language_id int REFERENCES language,
  rental_duration smallint NOT NULL, rental_rate numeric(4,2) NOT NULL, length smallint, replacement_cost numeric(5,2) NOT NULL,
  rating mpaa_rating, special_features text[], last_update timestamptz NOT NULL);
CREATE TABLE film_actor (
  actor_id int REFERENCES actor, film_id int REFERENCES film, last_update timestamptz NOT NULL, PRIMARY KEY (actor_id, film_id));
CREATE TABLE film_category (
  film_id int REFERENCES film, category_id int REFERENCES category, last_update timestamptz NOT NULL,
  PRIMARY KEY (film_id, category_id));
CREATE TABLE store (
  store_id int PRIMARY KEY, manager_staff_id int NOT NULL UNIQUE, address_id int NOT NULL REFERENCES address,
  last_update timestamptz NOT NULL);
CREATE TABLE staff (
  staff_id int PRIMARY KEY, first_name text NOT NULL, last_name text NOT NULL, address_id int NOT NULL REFERENCES address,
  email text, store_id int NOT NULL REFERENCES store DEFERRABLE INITIALLY DEFERRED, active boolean NOT NULL,
  username text NOT NULL, password text, last_update timestamptz NOT NULL, picture bytea);
ALTER TABLE store ADD FOREIGN KEY (manager_staff_id) REFERENCES staff DEFERRABLE INITIALLY DEFERRED;
CREATE TABLE customer (
  customer_id int PRIMARY KEY, store_id int NOT NULL REFERENCES store, first_name text NOT NULL, last_name text NOT NULL,
  email text, address_id int NOT NULL REFERENCES address, activebool boolean NOT NULL, create_date date NOT NULL,
  last_update timestamptz);
CREATE TABLE inventory (
  inventory_id int PRIMARY KEY, film_id int NOT NULL REFERENCES film, store_id int NOT NULL REFERENCES store,
  last_update timestamptz NOT NULL);
CREATE TABLE rental (
  rental_id int PRIMARY KEY, rental_date timestamptz NOT NULL, inventory_id int NOT NULL REFERENCES inventory,
  customer_id int NOT NULL REFERENCES customer, return_date timestamptz, staff_id int NOT NULL REFERENCES staff,
  last_update timestamptz NOT NULL);
CREATE TABLE payment (
  payment_id int NOT NULL, customer_id int NOT NULL, staff_id int NOT NULL, rental_id int NOT NULL,
  amount numeric(5,2) NOT NULL, payment_date timestamptz NOT NULL, PRIMARY KEY (payment_date, payment_id))
  PARTITION BY RANGE (payment_date);
CREATE TABLE payment_p2025 PARTITION OF payment FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
CREATE TABLE payment_p2026 PARTITION OF payment FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
ALTER TABLE payment_p2025 ADD FOREIGN KEY (customer_id) REFERENCES customer, ADD FOREIGN KEY (staff_id) REFERENCES staff,
  ADD FOREIGN KEY (rental_id) REFERENCES rental;
ALTER TABLE payment_p2026 ADD FOREIGN KEY (customer_id) REFERENCES customer, ADD FOREIGN KEY (staff_id) REFERENCES staff,
  ADD FOREIGN KEY (rental_id) REFERENCES rental;
