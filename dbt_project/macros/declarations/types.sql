{#-
  Types. A parsed column has the type of its raw column (docs/types.md tells which that is); only the `current_` views
  go further and show a time of day as one, because Spark, which compacts the tables, has no such type.
-#}

{#- Without precision and length, in single spaces. -#}
{% macro postgres_type_name(data_type) %}
  {{ return(modules.re.sub("\\([^)]*\\)", "", data_type | lower).split() | join(" ")) }}
{% endmacro %}

{#- The Trino type of a raw column that is declared with this Postgres type, by any name that Postgres has for it. -#}
{% macro lake_type(data_type) %}
  {%- set name = postgres_type_name(data_type) -%}
  {%- set arguments = modules.re.findall("\\(\\s*(\\d+)\\s*(?:,\\s*(-?\\d+)\\s*)?\\)", data_type) -%}
  {%- set plain = {
    "bool": "boolean", "boolean": "boolean",
    "int2": "integer", "smallint": "integer", "smallserial": "integer", "serial2": "integer",
    "int4": "integer", "integer": "integer", "int": "integer", "serial": "integer", "serial4": "integer",
    "int8": "bigint", "bigint": "bigint", "bigserial": "bigint", "serial8": "bigint",
    "oid": "bigint", "xid": "bigint", "cid": "bigint",
    "float4": "real", "real": "real", "float8": "double", "double precision": "double", "float": "double",
    "date": "date",
    "timestamp": "timestamp(6)", "timestamp without time zone": "timestamp(6)",
    "timestamptz": "timestamp(6) with time zone", "timestamp with time zone": "timestamp(6) with time zone",
    "time": "bigint", "time without time zone": "bigint",
    "bytea": "varbinary",
  } -%}
  {%- if name == "float" and arguments and arguments[0][0] | int <= 24 -%}
    {{ return("real") }}
  {%- elif name in ("numeric", "decimal", "dec") and arguments -%}
    {%- set precision, scale = arguments[0][0] | int, (arguments[0][1] or 0) | int -%}
    {%- set digits = precision - scale if scale < 0 else [precision, scale] | max -%}
    {{ return("varchar" if digits > 38 else "decimal(" ~ digits ~ "," ~ ([scale, 0] | max) ~ ")") }}
  {%- endif -%}
  {{ return(plain.get(name, "varchar")) }}
{% endmacro %}

{#- Whether a value of the one Trino type is the same in the other, by a hash too; or the cast of one that is not fails. -#}
{% macro keeps_values(there, declared) %}
  {%- set others = {
    "integer": ["bigint", "double", "varchar"], "bigint": ["integer", "varchar"], "real": ["double"],
    "date": ["timestamp(6)", "varchar"], "boolean": ["varchar"],
  } -%}
  {%- set scales = modules.re.findall("^decimal\\(\\d+, ?(\\d+)\\)$", there) + modules.re.findall("^decimal\\(\\d+, ?(\\d+)\\)$", declared) -%}
  {{ return(there == declared or declared in others.get(there, []) or (scales | length == 2 and scales[0] | int <= scales[1] | int)) }}
{% endmacro %}

{#- A value of that type from its text in Postgres' own output format. -#}
{% macro from_postgres_text(text, column) %}
  {%- set name = postgres_type_name(column.postgres_type) -%}
  {%- if column.type == "varchar" -%}
    {{ return(text) }}
  {%- elif column.type == "timestamp(6) with time zone" -%}
    {{ return("cast(from_iso8601_timestamp_nanos(replace(" ~ text ~ ", ' ', 'T')) as " ~ column.type ~ ")") }}
  {%- elif column.type == "varbinary" -%}
    {{ return("from_hex(substr(" ~ text ~ ", 3))") }}
  {%- elif name in ("time", "time without time zone") -%}
    {#- Trino's time ends before 24:00:00. -#}
    {%- set micros = "date_diff('microsecond', time '00:00:00.000000', cast(" ~ text ~ " as time(6)))" -%}
    {{ return("case when " ~ text ~ " = '24:00:00' then 86400000000 else " ~ micros ~ " end") }}
  {%- endif -%}
  {{ return("cast(" ~ text ~ " as " ~ column.type ~ ")") }}
{% endmacro %}

{#- The column as a reader wants it: a time of day as one. -#}
{% macro for_readers(column) %}
  {%- if postgres_type_name(column.postgres_type) in ("time", "time without time zone") -%}
    {{ return("date_add('microsecond', " ~ adapter.quote(column.name) ~ ", time '00:00:00.000000') as " ~ adapter.quote(column.name)) }}
  {%- endif -%}
  {{ return(adapter.quote(column.name)) }}
{% endmacro %}
