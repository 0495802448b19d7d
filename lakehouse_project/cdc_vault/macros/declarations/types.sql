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
  {%- set name = cdc_vault.postgres_type_name(data_type) -%}
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

{#- Whether Postgres has no type of that name itself: one of the user's own, or a misspelled one. Such columns are text. -#}
{% macro is_unknown_type(data_type) %}
  {%- set texts = [
    "text", "varchar", "character varying", "char", "character", "bpchar", "name", "numeric", "decimal", "dec", "uuid", "json",
    "jsonb", "jsonpath", "xml", "money", "interval", "timetz", "time with time zone", "inet", "cidr", "macaddr", "macaddr8", "bit",
    "varbit", "bit varying", "tsvector", "tsquery", "point", "lseg", "path", "box", "polygon", "line", "circle", "pg_lsn", "xid8",
    "tid", "txid_snapshot", "pg_snapshot",
  ] -%}
  {{ return(cdc_vault.lake_type(data_type) == "varchar" and cdc_vault.postgres_type_name(data_type) not in texts) }}
{% endmacro %}

{#- Whether a value of the one Trino type is the same in the other; or the cast of one that is not fails. -#}
{% macro keeps_values(there, declared) %}
  {%- set others = {
    "integer": ["bigint", "double", "varchar"], "bigint": ["integer", "varchar"], "real": ["double"],
    "date": ["timestamp(6)", "varchar"], "boolean": ["varchar"],
  } -%}
  {%- set scales = modules.re.findall("^decimal\\(\\d+, ?(\\d+)\\)$", there) + modules.re.findall("^decimal\\(\\d+, ?(\\d+)\\)$", declared) -%}
  {{ return(there == declared or declared in others.get(there, []) or (scales | length == 2 and scales[0] | int <= scales[1] | int)) }}
{% endmacro %}

{#- Whether a cast of the one Trino type to the other, as a model lists it, keeps each value, if not its hash, or fails; true of a type that no column of ours has. -#}
{% macro holds_values(there, listed) %}
  {%- set listed = listed | lower | replace(", ", ",") -%}
  {%- if there == listed -%}{{ return(true) }}{%- endif -%}
  {%- set ours = ["boolean", "integer", "bigint", "real", "double", "date", "timestamp(6)", "timestamp(6) with time zone", "varchar", "varbinary"] -%}
  {%- set as_text, as_decimal = listed == "varchar" and there != "real", listed.startswith("decimal") and there in ("integer", "bigint") -%}
  {{ return(as_text or as_decimal or cdc_vault.keeps_values(there, listed) or not (listed in ours or listed.startswith("decimal"))) }}
{% endmacro %}

{#- Whether a column of the one Trino type has the other, or gets it by a promotion of Iceberg's; true of a type that no column of ours has. -#}
{% macro can_become(there, declared) %}
  {%- set before, after = cdc_vault.postgres_type_name(there), cdc_vault.postgres_type_name(declared) -%}
  {%- set ours = ["boolean", "integer", "bigint", "real", "double", "decimal", "date", "timestamp", "timestamp with time zone", "varchar", "varbinary"] -%}
  {%- set digits = modules.re.findall("decimal\\((\\d+), ?(\\d+)\\)", there ~ " " ~ declared | lower) -%}
  {%- if digits | length == 2 -%}
    {{ return(digits[0][0] | int <= digits[1][0] | int and digits[0][1] == digits[1][1]) }}
  {%- endif -%}
  {{ return(before == after or {"integer": "bigint", "real": "double"}.get(before) == after or after not in ours) }}
{% endmacro %}

{#-
  One value for all that Postgres calls equal, though it prints them differently: -0 and 0, 1.0 and 1.00 of a numeric that is
  kept as text, char(n) with more and less padding, citext in any case. Types of which only Postgres knows what is equal
  are refused. scaffold/types.py has the same list.
-#}
{% macro one_spelling(value, column) -%}
  {%- set declared = column.postgres_type or "" -%}
  {%- set name = cdc_vault.postgres_type_name(declared) -%}
  {%- set element = name.replace("[]", "").split(".")[-1] -%}
  {%- set is_array = name.endswith("[]") -%}
  {%- if element in ["jsonb", "numrange", "nummultirange"] or (element ~ " ").startswith("interval ")
      or (is_array and element in ["real", "float4", "double precision", "float8", "float", "citext", "bpchar"])
      or (is_array and element in ["numeric", "decimal", "dec"] and "(" not in declared) -%}
    {{ exceptions.raise_compiler_error(
      "column " ~ column.name ~ " is " ~ declared ~ ", of which Postgres calls values equal that it prints differently: "
      ~ "a key of the vault cannot be made of it; leave the table out of the vault (`vault: {none: …}`)"
    ) }}
  {%- endif -%}
  {%- set rule = cdc_vault.spelling_of(column) -%}
  {%- if rule == "double" -%}
    {{ value }} + 0
  {%- elif rule == "numeric" -%}
    {{ cdc_vault.without_trailing_zeros(value) }}
  {%- elif rule == "char" -%}
    trim(trailing ' ' from {{ value }})
  {%- elif rule == "citext" -%}
    lower({{ value }})
  {%- else -%}
    {{ value }}
  {%- endif -%}
{%- endmacro %}

{#- The rule by which a column's values have one spelling, called by the type that has it; "" where each is its own. A `real` is a key as the double that it is. -#}
{% macro spelling_of(column) %}
  {%- set name = cdc_vault.postgres_type_name(column.postgres_type or "") -%}
  {%- if column.type in ("real", "double") -%}{{ return("double") }}{%- endif -%}
  {%- if column.type != "varchar" -%}{{ return("") }}{%- endif -%}
  {%- if name.split(".")[-1] == "citext" -%}{{ return("citext") }}{%- endif -%}
  {{ return({"numeric": "numeric", "decimal": "numeric", "dec": "numeric", "character": "char", "char": "char", "bpchar": "char"}.get(name, "")) }}
{% endmacro %}

{#- A value as one of the key's type. Digits are read as a number as they are printed: a cast of a decimal may round twice. -#}
{% macro as_key_type(value, column) -%}
  {%- set type = cdc_vault.lake_type(column.key_type) -%}
  {%- if cdc_vault.postgres_type_name(column.postgres_type or "") in ("character", "char", "bpchar") -%}
    trim(trailing ' ' from {{ value }})
  {%- elif type == column.type -%}
    {{ value }}
  {%- elif column.type.startswith("decimal") -%}
    cast(cast({{ value }} as varchar) as {{ type }})
  {%- else -%}
    cast({{ value }} as {{ type }})
  {%- endif -%}
{%- endmacro %}

{% macro without_trailing_zeros(text) -%}
  regexp_replace({{ text }}, '\.0*$|(\.[0-9]*[1-9])0+$', '$1')
{%- endmacro %}

{#-
  A value of that type from its text in Postgres' own output format, as ingestion took it into raw: what the lake cannot
  hold is there by the table's policy (docs/types.md). `landed`: the type in raw, where the declared one is another. Old
  keys of topics that an earlier version landed have a T within a moment, Z for its zone, and microseconds for a time.
-#}
{% macro from_postgres_text(text, column) %}
  {%- set landed = column.landed or column.type -%}
  {%- set name = cdc_vault.postgres_type_name(column.postgres_type) -%}
  {%- set value = "cast(" ~ text ~ " as " ~ landed ~ ")" -%}
  {%- if landed == "varchar" -%}
    {%- set value = text -%}
  {%- elif landed == "timestamp(6)" -%}
    {%- set value = "cast(replace(" ~ text ~ ", 'T', ' ') as " ~ landed ~ ")" -%}
  {%- elif landed == "timestamp(6) with time zone" -%}
    {%- set value = "cast(regexp_replace(replace(" ~ text ~ ", 'T', ' '), '(\\+00|Z)$', ' UTC') as " ~ landed ~ ")" -%}
  {%- elif landed == "varbinary" -%}
    {%- set value = "from_hex(substr(" ~ text ~ ", 3))" -%}
  {%- elif cdc_vault.is_time_of_day(column) -%}
    {%- set value = cdc_vault.micros_of_day(text) -%}
  {%- endif -%}
  {%- set value = cdc_vault.representable(text, landed, value, column.on_unrepresentable) -%}
  {{ return(value if landed == column.type else "cast(" ~ value ~ " as " ~ column.type ~ ")") }}
{% endmacro %}

{#- Of a time of day as text, up to 24:00:00, its microseconds. -#}
{% macro micros_of_day(text) -%}
  case when strpos({{ text }}, ':') = 0 then cast({{ text }} as bigint)
    else (cast(split_part({{ text }}, ':', 1) as bigint) * 60 + cast(split_part({{ text }}, ':', 2) as bigint)) * 60000000
      + cast(cast(split_part({{ text }}, ':', 3) as decimal(8,6)) * 1000000 as bigint) end
{%- endmacro %}

{#- The value, or what the policy puts in the place of one that the type cannot hold; under `error` none has landed. -#}
{% macro representable(text, type, value, policy) %}
  {%- set highest = {
    "date": "date '9999-12-31'", "timestamp(6)": "timestamp '9999-12-31 23:59:59.999999'",
    "timestamp(6) with time zone": "timestamp '9999-12-31 23:59:59.999999 UTC'",
  }.get(type) -%}
  {%- set clamped = policy == "clamp" -%}
  {%- if policy in ("null", "clamp") and highest -%}
    {%- set lowest = highest | replace("9999-12-31", "0001-01-01") | replace("23:59:59.999999", "00:00:00.000000") -%}
    {{ return(
      "case when " ~ text ~ " = '-infinity' or " ~ text ~ " like '% BC' then " ~ (lowest if clamped else "null")
      ~ " when " ~ text ~ " = 'infinity' or strpos(" ~ text ~ ", '-') > 5 then " ~ (highest if clamped else "null")
      ~ " else " ~ value ~ " end"
    ) }}
  {%- elif policy in ("null", "clamp") and type.startswith("decimal") -%}
    {{ return("case when " ~ text ~ " <> 'NaN' then " ~ value ~ " end") }}
  {%- endif -%}
  {{ return(value) }}
{% endmacro %}

{#- Whether raw keeps a time of day in the column, as microseconds; one that is masked is text. -#}
{% macro is_time_of_day(column) %}
  {{ return(column.type == "bigint" and cdc_vault.postgres_type_name(column.postgres_type) in ("time", "time without time zone")) }}
{% endmacro %}

{#- The column as a reader wants it: a time of day as one, whatever the session's time zone is. Trino's ends before 24:00:00, which becomes 00:00:00. -#}
{% macro for_readers(column) %}
  {%- set name = cdc_vault.quoted(column.name) -%}
  {{ return("cast(at_timezone(from_unixtime_nanos(" ~ name ~ " * 1000), 'UTC') as time(6)) as " ~ name if cdc_vault.is_time_of_day(column) else name) }}
{% endmacro %}
