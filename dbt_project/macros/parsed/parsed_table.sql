{#-
  The parsed table of a raw table: typed, one row per change, nothing missing.

  The SQL is made for what has arrived. A first look at the metadata columns of the new raw rows tells whether any row
  lacks a TOASTed column or truncates the table; those who do not are not made to pay for it. With no news at all there
  is nothing to run.
-#}
{% macro parsed_table(source_name, table_name) -%}
  {%- set raw = source(source_name, table_name) -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
    {%- set table = declared_table(source_name, table_name) -%}
    {%- set columns = declared_columns(table) -%}
    {%- if not columns | selectattr("is_key") | list -%}
      {{ exceptions.raise_compiler_error(source_name ~ "." ~ table_name ~ " has no key: declare config.meta.raw.key, parsed needs to know which rows are versions of one another") }}
    {%- endif -%}
    {%- set news = raw_news(source_name, table_name, raw, columns) -%}
    {%- if news is none -%}
-- no news
-- columns {{ tojson(parsed_columns(columns)) }}
select 1 where false
    {%- else -%}
-- columns {{ tojson(parsed_columns(columns)) }}
      {% for batch in news.batches -%}
{{ parsed_rows(raw, columns, record_source(table), news, batch) }}
        {%- if not loop.last %}
-- next batch
        {% endif -%}
      {%- endfor -%}
    {%- endif -%}
  {%- endif -%}
{%- endmacro %}

{#- Where a change stands among all changes of its source, as text of fixed width that sorts like it. -#}
{% macro source_position(row="") -%}
  {%- set row = row ~ "." if row else "" -%}
  lpad(cast({{ row }}_epoch as varchar), 10, '0') || '.' || lpad(cast({{ row }}_commit_lsn as varchar), 19, '0')
    || '.' || lpad(cast({{ row }}_seq as varchar), 19, '0')
{%- endmacro %}

{#- Key columns, optionally each of a table alias. -#}
{% macro key_names(columns, row="") -%}
  {%- for column in columns if column.is_key -%}
    {{ row ~ "." if row }}{{ adapter.quote(column.name) }}{{ ", " if not loop.last }}
  {%- endfor -%}
{%- endmacro %}

{#- Name and type of each column of the parsed table. -#}
{% macro parsed_columns(columns) %}
  {%- set own = [] -%}
  {%- for column in columns -%}
    {%- do own.append({"name": column.name, "type": column.type}) -%}
  {%- endfor -%}
  {{ return(own + [
    {"name": "_op", "type": "varchar"},
    {"name": "_deleted", "type": "boolean"},
    {"name": "_valid_from", "type": "timestamp(6) with time zone"},
    {"name": "_epoch", "type": "integer"},
    {"name": "_commit_lsn", "type": "bigint"},
    {"name": "_seq", "type": "bigint"},
    {"name": "_record_source", "type": "varchar"},
    {"name": "_loaded_at", "type": "timestamp(6) with time zone"},
  ]) }}
{% endmacro %}

{#-
  The rows of one batch. `news` says which raw rows (`window`), among which parsed rows they may already be (`known`),
  which columns have to be filled, and whether there are truncates; `batch` narrows it to a range of positions.
-#}
{% macro parsed_rows(raw, columns, record_source, news, batch) -%}
  with arrived as (
    select *, {{ source_position() }} as position
    from {{ raw }}
    where _op <> 't' and {{ news.window }}{{ " and " ~ batch if batch }}
      {%- if news.known %}
      and not exists (
        select 1 from {{ this }} as known
        where {{ news.known }} and known._epoch = {{ raw.identifier }}._epoch
          and known._commit_lsn = {{ raw.identifier }}._commit_lsn and known._seq = {{ raw.identifier }}._seq
      )
      {%- endif %}
  )
  {%- if news.unchanged -%}
  , {{ toast_fill(columns, news) }}
  {%- endif -%}
  {%- if news.truncates -%}
  , {{ truncated_keys(raw, columns, news, batch) }}
  {%- endif %}
  select
    {%- for column in columns %}
    {{ parsed_value(column, news.unchanged) }} as {{ adapter.quote(column.name) }},
    {%- endfor %}
    arrived._op,
    arrived._op = 'd' as _deleted,
    arrived._committed_at as _valid_from,
    arrived._epoch,
    arrived._commit_lsn,
    arrived._seq,
    '{{ record_source }}' as _record_source,
    arrived._ingested_at as _loaded_at
  from arrived
  {%- if news.unchanged %}
  left join filled on filled.position = arrived.position
  {%- endif %}
  {%- if news.truncates %}
  union all
  select
    {%- for column in columns %}
    {{ adapter.quote(column.name) if column.is_key else "cast(null as " ~ column.type ~ ")" }},
    {%- endfor %}
    't', true, _committed_at, _epoch, _commit_lsn, _seq, '{{ record_source }}', _ingested_at
  from truncated
  {%- endif %}
{%- endmacro %}

{#-
  A delete says that a key is gone and nothing else: its other columns are null, also where the source sends them
  (REPLICA IDENTITY FULL). The last values are in the version before it, and need not be kept twice.
-#}
{% macro parsed_value(column, unchanged) -%}
  {%- set name = adapter.quote(column.name) -%}
  {%- if column.is_key -%}
    arrived.{{ name }}
  {%- elif column.source_name in unchanged or column.name in unchanged -%}
    case when arrived._op = 'd' then null when {{ lacks(column, "arrived") }} then filled.{{ name }} else arrived.{{ name }} end
  {%- else -%}
    case when arrived._op <> 'd' then arrived.{{ name }} end
  {%- endif -%}
{%- endmacro %}
