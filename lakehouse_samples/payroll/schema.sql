-- One table of 100,000 employees.
CREATE TABLE IF NOT EXISTS employee (
    id     serial PRIMARY KEY,
    name   varchar,
    salary decimal(10, 2)
);

INSERT INTO employee (name, salary)
SELECT 'Mkamze Mwatela' || number, number * 200
FROM generate_series(1, 100000) AS number
WHERE NOT EXISTS (SELECT FROM employee);
