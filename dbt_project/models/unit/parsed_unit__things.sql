select cast(1 as integer) as id
