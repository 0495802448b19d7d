{#-
  Hashing that is injective: two different inputs never give the same text to hash.

  - Every value becomes canonical text of its type: a decimal without trailing zeros (a wider scale changes nothing), a
    time zone's instant in UTC, bytes as hex, a `real` as a double, because Trino prints seven digits of it. In a key, values
    that Postgres calls equal have one text (`one_spelling`);
    a hashdiff tells them apart, because a row says the one or the other.
  - Backslash and the delimiter `|` are escaped, so that ('a|b', 'c') is not ('a', 'b|c').
  - NULL is `\N` in a key, which no escaped text can be, so that NULL is not ''. In a hashdiff a NULL is left out and the
    others are `name=value`, sorted by name: a new nullable column changes no hashdiff that is already stored.
-#}

{#- Hex digits of the hash function chosen by var `vault_hash`. -#}
{% macro hash_length() %}
  {{ return({"md5": 32, "sha256": 64}[var("vault_hash", "md5")]) }}
{% endmacro %}

{#- Key of what is not known: a NULL reference. -#}
{% macro zero_key() -%}
  '{{ "0" * cdc_vault.hash_length() }}'
{%- endmacro %}

{#- Key of what is known to be wrong. -#}
{% macro error_key() -%}
  '{{ "f" * cdc_vault.hash_length() }}'
{%- endmacro %}

{% macro hash_of(text) -%}
  lower(to_hex({{ var("vault_hash", "md5") }}(to_utf8({{ text }}))))
{%- endmacro %}

{#-
  A value as text, one way only; `column` is a dict of name and types. Where it is `part_of` a reference of several
  columns, it is NULL as soon as one of them is: in SQL such a row refers to nothing (MATCH SIMPLE). A value of a key is
  one of its `key_type`, where it names a key of another type.
-#}
{% macro canonical_text(column, of_key=false) -%}
  {%- set value = cdc_vault.quoted(column.name) -%}
  {%- if column.part_of -%}
    {%- set given = [] -%}
    {%- for name in column.part_of -%}{%- do given.append(cdc_vault.quoted(name) ~ " is not null") -%}{%- endfor -%}
    {%- set value = "case when " ~ given | join(" and ") ~ " then " ~ value ~ " end" -%}
  {%- endif -%}
  {%- if of_key and column.key_type -%}
    {%- set value = cdc_vault.as_key_type(value, column) -%}
    {%- set column = dict(column, type=cdc_vault.lake_type(column.key_type), postgres_type=column.key_type) -%}
  {%- endif -%}
  {%- if of_key -%}{%- set value = cdc_vault.one_spelling(value, column) -%}{%- endif -%}
  {%- if column.type == "varchar" -%}
    {{ value }}
  {%- elif column.type.startswith("decimal") -%}
    {{ cdc_vault.without_trailing_zeros("cast(" ~ value ~ " as varchar)") }}
  {%- elif column.type.endswith("with time zone") -%}
    cast(at_timezone({{ value }}, 'UTC') as varchar)
  {%- elif column.type == "varbinary" -%}
    to_hex({{ value }})
  {%- elif column.type == "real" -%}
    cast(cast({{ value }} as double) as varchar)
  {%- else -%}
    cast({{ value }} as varchar)
  {%- endif -%}
{%- endmacro %}

{% macro escaped_text(column, normalize=none, of_key=false) -%}
  {%- set text = cdc_vault.canonical_text(column, of_key) -%}
  {%- if normalize == "upper_trim" -%}
    {%- set text = "upper(trim(" ~ text ~ "))" -%}
  {%- elif normalize is not none -%}
    {{ exceptions.raise_compiler_error("normalize is " ~ normalize ~ ", it must be upper_trim or left out") }}
  {%- endif -%}
  {{ "replace(replace(" ~ text ~ ", '\\', '\\\\'), '|', '\\|')" if column.type == "varchar" else text }}
{%- endmacro %}

{#-
  Key over columns in the order given; `{constant: text}` among them is a collision code, which tells apart equal keys of
  different things. All columns NULL: the zero key. All of them blank (nothing but spaces): by `blank` a key like any other
  (`keep`), the zero key (`unknown`) or the error key (`error`).
-#}
{% macro hash_key(columns, normalize=none, blank="keep") -%}
  {%- set parts, texts, given = [], [], [] -%}
  {%- for column in columns -%}
    {%- if column.constant is defined -%}
      {%- do parts.append("'" ~ column.constant | replace("\\", "\\\\") | replace("|", "\\|") | replace("'", "''") ~ "'") -%}
    {%- else -%}
      {%- do parts.append(cdc_vault.key_part(column, normalize)) -%}
      {%- do texts.append(cdc_vault.canonical_text(column)) -%}
      {%- do given.append("nullif(trim(" ~ cdc_vault.canonical_text(column) ~ "), '')") -%}
    {%- endif -%}
  {%- endfor -%}
  {%- if blank not in ("keep", "unknown", "error") -%}
    {{ exceptions.raise_compiler_error("blank is " ~ blank ~ ", it must be keep, unknown or error") }}
  {%- endif -%}
  case
      when {{ cdc_vault.nothing_of(texts) }} then {{ cdc_vault.zero_key() }}
      {%- if blank != "keep" %}
      when {{ cdc_vault.nothing_of(given) }} then {{ cdc_vault.zero_key() if blank == "unknown" else cdc_vault.error_key() }}
      {%- endif %}
      else {{ cdc_vault.hash_of(parts | join(" || '|' || ")) }}
    end
{%- endmacro %}

{% macro key_part(column, normalize=none) -%}
  coalesce({{ cdc_vault.escaped_text(column, normalize, of_key=true) }}, '\N')
{%- endmacro %}

{% macro nothing_of(texts) -%}
  {{ "coalesce(" ~ texts | join(", ") ~ ")" if texts | length > 1 else texts[0] }} is null
{%- endmacro %}

{#-
  Fingerprint of what a satellite says. A deleted row says one thing only, whatever it said before.

  Texts of any length are joined by `array_join`: Trino's `||` and `concat_ws` make no text of more than 1 MiB.
-#}
{% macro hash_diff(columns, deleted="is_deleted") -%}
  {%- set parts = [] -%}
  {%- for column in columns | sort(attribute="name", case_sensitive=true) -%}
    {%- set name = column.name | replace("\\", "\\\\") | replace("|", "\\|") | replace("=", "\\=") | replace("'", "''") -%}
    {%- set text = cdc_vault.escaped_text(column) -%}
    {%- if column.type in ("varchar", "varbinary") and not column.part_of -%}
      {%- do parts.append("case when " ~ cdc_vault.quoted(column.name) ~ " is not null then array_join(array['" ~ name ~ "=', " ~ text ~ "], '') end") -%}
    {%- else -%}
      {%- do parts.append("'" ~ name ~ "=' || " ~ text) -%}
    {%- endif -%}
  {%- endfor -%}
  case
      when {{ deleted }} then {{ cdc_vault.hash_of("'\\D'") }}
      else {{ cdc_vault.hash_of(cdc_vault.joined(parts) if parts else "''") }}
    end
{%- endmacro %}

{#- Texts joined by the delimiter, without those that are NULL; in groups, so that no array is made of more than 100. -#}
{% macro joined(texts) -%}
  {%- if texts | length <= 100 -%}
    array_join(array[{{ texts | join(", ") }}], '|')
  {%- else -%}
    {%- set groups = [] -%}
    {%- for group in texts | batch(100) -%}{%- do groups.append("nullif(" ~ cdc_vault.joined(group) ~ ", '')") -%}{%- endfor -%}
    {{ cdc_vault.joined(groups) }}
  {%- endif -%}
{%- endmacro %}
