{#-
  The parsed table of a raw table: typed, one row per change, nothing missing.

  The SQL is made for what has arrived. A first look at the metadata columns of the new raw rows tells whether any row
  lacks a TOASTed column or truncates the table; those who do not are not made to pay for it. With no new data at all there
  is nothing to run.

  What a declared column says is in raw for all rows, also those loaded before it was declared, or under its former name.
  So where parsed lacks one, it is made anew from the whole of raw; so it is where it has one of a type that cannot become the
  declared one. Positions and moments of publication come out the same, and nothing below loads again. Until a cut covers
  the table it stays as it is: a column of nulls would not be missed any more. The same holds for a table that was rolled back to before it was made so: it keeps the column,
  and has nulls in it. A table without rows gets such a type at once: its first row may be long in coming, and the stage's view waits for the type (`columns_awaited`).

  A column that is not declared any more stays in the table, with nulls in the rows that are loaded meanwhile. Such a load
  writes down before it inserts that it leaves the column out (`left_out.sql`). Once that is declared again, parsed is made
  anew, and says that it was `revised`.

  What lands late, as a dead letter that is replayed, may change rows that are loaded already: one that lacks a value had it
  from the version before, and a truncate deletes each key that was there. Then parsed is made anew too, and says that it
  was `revised`, so that what is said below it is made anew as well.

  A raw table that was dropped by hand and landed again lacks what parsed has from before: that stays where parsed is made anew.
-#}
{% macro parsed_table(source_name, table_name) -%}
  {%- set raw = source(source_name, table_name) -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
    {%- set table = cdc_vault.declared_table(source_name, table_name) -%}
    {%- set columns = cdc_vault.declared_columns(table) -%}
    {%- if not columns | selectattr("is_key") | list -%}
      {{ exceptions.raise_compiler_error(source_name ~ "." ~ table_name ~ " has no key: declare config.meta.raw.key, parsed needs to know which rows are versions of one another") }}
    {%- endif -%}
    {%- do cdc_vault.check_names(source_name ~ "." ~ table_name, columns, cdc_vault.parsed_columns([]) | map(attribute="name") | list + ["_deleted"]) -%}
    {%- set newest, undone, noted = cdc_vault.newest_loaded() -%}
    {%- set loaded = cdc_vault.loaded_columns() -%}
    {%- set left_out = cdc_vault.columns_left_out(source_name, table_name, raw, columns, loaded, noted) if newest is not none else [] -%}
    {%- set emptied = columns | map(attribute="name") | map("lower") | select("in", left_out or []) | select("in", loaded) | list -%}
    {%- set lacking = columns | map(attribute="name") | map("lower") | reject("in", loaded) | list -%}
    {%- set retyped = [] -%}
    {%- for column in columns if not cdc_vault.can_become(loaded.get(column.name | lower, column.type), column.type) -%}{%- do retyped.append(column) -%}{%- endfor -%}
    {%- set anew = retyped | length > 0 or newest is not none and (undone or (lacking + emptied) | length > 0) -%}
    {%- set new_data = cdc_vault.new_raw_rows(source_name, table_name, raw, columns, none if anew else newest) -%}
    {%- set late = new_data and newest and (new_data.landed_late or "") > newest and cdc_vault.changes_loaded(raw, columns, newest, new_data.window) -%}
    {%- if late and not anew -%}
      {%- set anew = true -%}
      {%- set new_data = cdc_vault.new_raw_rows(source_name, table_name, raw, columns, none) -%}
    {%- endif -%}
    {%- set note = cdc_vault.note_of_left_out(anew, new_data, left_out, noted, columns, loaded) -%}
    {%- if new_data is none and anew and newest is none and not cdc_vault.has_guessed_types(raw, retyped) -%}
{{ cdc_vault.load_header(anew=true, columns=cdc_vault.parsed_columns(columns), more={"checks": none, "revised": false, "left_out": note}) }}
{{ cdc_vault.no_rows(columns) }}
    {%- elif new_data is none -%}
{{ cdc_vault.load_header(new_data=false, columns=[] if anew else cdc_vault.parsed_columns(columns), more={"checks": none, "left_out": note}) }}
select 1 where false
    {%- else -%}
      {%- do cdc_vault.check_types(source_name ~ "." ~ table_name, raw, columns, loaded) -%}
{{ cdc_vault.load_header(anew=anew, columns=cdc_vault.parsed_columns(columns), more={"checks": none, "revised": late or emptied | length > 0, "left_out": note}) }}
{{ cdc_vault.parsed_rows(raw, new_data.columns, cdc_vault.record_source(table), dict(new_data, earlier=cdc_vault.earlier_rows(raw, columns, loaded) if anew else none)) }}
    {%- endif -%}
  {%- endif -%}
{%- endmacro %}

{#- A parsed table without rows, as it is declared. -#}
{% macro no_rows(columns) -%}
  select
    {%- for column in cdc_vault.parsed_columns(columns) %}
    cast(null as {{ column.type }}) as {{ cdc_vault.quoted(column.name) }}{{ "," if not loop.last }}
    {%- endfor %}
  where false
{%- endmacro %}

{#-
  What was loaded before the first row that raw has; null in columns that it lacked, and for values that the declared type does
  not have as they are.
-#}
{% macro earlier_rows(raw, columns, loaded) -%}
  select
    {%- for column in cdc_vault.parsed_columns(columns) %}
    {%- set name, there = cdc_vault.quoted(column.name), loaded.get(column.name | lower, "") %}
    try_cast({{ name if cdc_vault.keeps_values(there, column.type) else "null" }} as {{ column.type }}) as {{ name }}{{ "," if not loop.last }}
    {%- endfor %}
  from {{ this }}
  where _loaded_at < (select min(_ingested_at) from {{ raw }})
{%- endmacro %}

{#-
  The moment up to which the table is loaded, none where it has no rows that count; whether it is in a state from before
  it was made anew; and what it notes of columns that loads left out.
-#}
{% macro newest_loaded() %}
  {%- if not cdc_vault.is_loaded() -%}{{ return((none, false, none)) }}{%- endif -%}
  {%- set given = cdc_vault.given_raw_facts() -%}
  {%- if given is not none -%}{{ return((given.newest, false, given.left_out)) }}{%- endif -%}
  {%- set found -%}
    select cast(max(_loaded_at) as varchar), (
      select count(*)
      from {{ cdc_vault.system_table(this, "snapshots") }} as snapshots
      join {{ cdc_vault.system_table(this, "history") }} as history on history.snapshot_id = snapshots.snapshot_id
      join {{ cdc_vault.system_table(this, "properties") }} as properties on properties.key = '{{ cdc_vault.made_anew_property() }}'
      where history.is_current_ancestor and snapshots.committed_at < try_cast(properties.value as timestamp(6) with time zone)
    ), (
      select max(value) from {{ cdc_vault.system_table(this, "properties") }} where key = '{{ cdc_vault.left_out_property() }}'
    )
    from {{ this }}
  {%- endset -%}
  {%- set newest, before, noted = run_query(found).rows[0] -%}
  {{ return((newest, before > 0, noted)) }}
{% endmacro %}

{#-
  Whether rows to load stand before a loaded one that says more with them: one of their key that lacks a value, any that has
  its value from under another key, or a truncate.
-#}
{% macro changes_loaded(raw, columns, newest, window) %}
  {%- set position = cdc_vault.source_position("loaded") -%}
  {%- set found -%}
    with late as (
      select {{ cdc_vault.key_names(columns) }}, _old_key, {{ cdc_vault.source_position() }} as _lh_position
      from {{ raw }}
      where {{ window }} and _ingested_at > timestamp '{{ newest }}'
    )
    select count(*)
    from {{ raw }} as loaded
    cross join (
      select min(_lh_position) as _lh_first, min(_lh_position) filter (where _old_key is not null) as _lh_moved from late
    ) as firsts
    left join (
      select {{ cdc_vault.key_names(columns) }}, min(_lh_position) as _lh_first from late group by {{ cdc_vault.key_names(columns) }}
    ) as late_keys on ({{ cdc_vault.comparable_key(columns, "late_keys") }}) = ({{ cdc_vault.comparable_key(columns, "loaded") }})
    where (loaded._op = 't' or loaded._unchanged is not null) and loaded._ingested_at <= timestamp '{{ newest }}'
      and (
        {{ position }} > late_keys._lh_first or {{ position }} > firsts._lh_moved
        or ((loaded._op = 't' or loaded._old_key is not null) and {{ position }} > firsts._lh_first)
      )
  {%- endset -%}
  {{ return(run_query(found).rows[0][0] > 0) }}
{% endmacro %}

{#-
  The columns of the table that is there, and their types. One of a release that called the flag of deletions `_deleted` is refused: a
  second flag beside it would be null for all its rows.
-#}
{% macro loaded_columns() %}
  {%- set there = cdc_vault.types_of(this) if cdc_vault.is_loaded() else {} -%}
  {%- if "_deleted" in there -%}
    {{ exceptions.raise_compiler_error(this ~ " is of an earlier release, its column _is_deleted is still called _deleted: run `lakehouse upgrade`, then load it again") }}
  {%- endif -%}
  {{ return(there) }}
{% endmacro %}

{#-
  Refuses a declared type that would change values on their way: a source may have got another one since, and of a type
  that is not Postgres's own, such as a domain, nothing is known here. A type that is only too short is left to Trino,
  which fails at the first value that does not fit. A name that Postgres does not have itself would be text: that is
  right of a raw column that is text, and left alone where parsed has it so already.
-#}
{% macro check_types(table, raw, columns, loaded={}) %}
  {%- set landed = cdc_vault.types_of(raw) -%}
  {%- for column in columns -%}
    {%- set there = landed.get(column.name | lower, column.type) -%}
    {%- set guessed = there != "varchar" and cdc_vault.is_unknown_type(column.postgres_type) and loaded.get(column.name | lower) != "varchar" -%}
    {%- if guessed or not cdc_vault.keeps_values(there, column.type) -%}
      {{ exceptions.raise_compiler_error(
        table ~ ": column " ~ column.name ~ " is " ~ there ~ " in raw, and as " ~ column.postgres_type ~ " it would be " ~ column.type
        ~ (", as Postgres itself has no such type" if guessed else ", which changes values") ~ ": declare the data_type that the source has (of a domain, its base type), and run `lakehouse scaffold`"
      ) }}
    {%- endif -%}
  {%- endfor -%}
{% endmacro %}

{#- Whether one of these columns is of a type that Postgres does not have, and raw has no text of it: that is refused once it has a row. -#}
{% macro has_guessed_types(raw, columns) %}
  {%- for column in columns if cdc_vault.is_unknown_type(column.postgres_type) -%}
    {%- if not cdc_vault.relation_exists(raw) or cdc_vault.types_of(raw).get(column.name | lower) != "varchar" -%}{{ return(true) }}{%- endif -%}
  {%- endfor -%}
  {{ return(false) }}
{% endmacro %}

{% macro types_of(relation) %}
  {%- set found = {} -%}
  {%- for column in cdc_vault.table_columns(relation) -%}{%- do found.update({column.name | lower: column.type | lower}) -%}{%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- Where a change stands among all changes of its source, as text of fixed width that sorts like it. -#}
{% macro source_position(row="") -%}
  {%- set row = row ~ "." if row else "" -%}
  lpad(cast({{ row }}_epoch as varchar), 10, '0') || '.' || lpad(cast({{ row }}_commit_lsn as varchar), 19, '0')
    || '.' || lpad(cast({{ row }}_seq as varchar), 19, '0')
{%- endmacro %}

{#- Key columns, optionally each of a table alias. -#}
{% macro key_names(columns, row="") -%}
  {%- for column in columns if column.is_key -%}
    {{ row ~ "." if row }}{{ cdc_vault.quoted(column.name) }}{{ ", " if not loop.last }}
  {%- endfor -%}
{%- endmacro %}

{#- The same for an `=`: a NaN does not equal itself, nor does the null that stands for what the lake cannot hold, and
  stays whatever the policy is later. Trino prints a real with seven digits, which are too few to tell all of them apart. -#}
{% macro comparable_key(columns, row="") -%}
  {%- for column in columns if column.is_key -%}
    {%- set name = (row ~ "." if row else "") ~ cdc_vault.quoted(column.name) -%}
    {%- set kind = modules.re.match("[a-z]+", column.type)[0] -%}
    {%- set as_text = kind in ("real", "double", "date", "timestamp", "decimal") -%}
    {%- set name = "cast(" ~ name ~ " as double)" if kind == "real" else name -%}
    {{ "coalesce(cast(" ~ name ~ " as varchar), '')" if as_text else name }}{{ ", " if not loop.last }}
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
    {"name": "_is_deleted", "type": "boolean"},
    {"name": "_valid_from", "type": "timestamp(6) with time zone"},
    {"name": "_epoch", "type": "integer"},
    {"name": "_commit_lsn", "type": "bigint"},
    {"name": "_seq", "type": "bigint"},
    {"name": "_record_source", "type": "varchar"},
    {"name": "_loaded_at", "type": "timestamp(6) with time zone"},
  ]) }}
{% endmacro %}

{#-
  The rows of one load. `new_data` says which raw rows (`window`), among which parsed rows they may already be (`known`, none where none count),
  which columns have to be filled (`unchanged`), whether there are truncates, and among which they are (`truncated`), and which rows of a table
  that is made anew stay (`earlier`): raw has them no more, and its truncates may delete their keys.
-#}
{% macro parsed_rows(raw, columns, record_source, new_data) -%}
  {%- set metadata = ["_op", "_epoch", "_commit_lsn", "_seq", "_committed_at", "_ingested_at", "_unchanged", "_old_key"] -%}
  with arrived as (
    select {{ cdc_vault.quoted_names(columns) }}, {{ metadata | join(", ") }}, {{ cdc_vault.source_position() }} as _lh_position
    from {{ cdc_vault.quoted("_lh_raw_" ~ model.name) if new_data.handed else raw }} as _lh_landed
    where _op <> 't'{{ " and " ~ new_data.window if not new_data.handed }}
      {%- if new_data.known and not new_data.handed %}
      and not exists (
        select 1 from {{ this }} as _lh_known
        where {{ new_data.known }} and _lh_known._epoch = _lh_landed._epoch
          and _lh_known._commit_lsn = _lh_landed._commit_lsn and _lh_known._seq = _lh_landed._seq
      )
      {%- endif %}
  )
  {%- if new_data.earlier -%}
  , earlier as (
    {{ new_data.earlier }}
  )
  {%- endif -%}
  {%- if new_data.unchanged -%}
  , {{ cdc_vault.toast_fill(columns, new_data) }}
  {%- endif -%}
  {%- if new_data.truncates -%}
  , {{ cdc_vault.truncated_keys(raw, columns, new_data) }}
  {%- endif %}
  select
    {%- for column in columns %}
    {{ cdc_vault.parsed_value(column, cdc_vault.lacking_columns(columns, new_data.unchanged)) }} as {{ cdc_vault.quoted(column.name) }},
    {%- endfor %}
    _op,
    _op = 'd' as _is_deleted,
    _committed_at as _valid_from,
    _epoch,
    _commit_lsn,
    _seq,
    {{ cdc_vault.sql_text(record_source) }} as _record_source,
    _ingested_at as _loaded_at
  from {{ "filled where _lh_kind = 'arrived'" if new_data.unchanged else "arrived" }}
  {%- if new_data.truncates %}
  union all
  select
    {%- for column in columns %}
    {{ cdc_vault.quoted(column.name) if column.is_key else "null" }},
    {%- endfor %}
    't', true, _committed_at, _epoch, _commit_lsn, _seq, {{ cdc_vault.sql_text(record_source) }}, _ingested_at
  from truncated
  {%- endif %}
  {%- if new_data.earlier %}
  union all
  select * from earlier
  {%- endif %}
{%- endmacro %}

{#-
  A delete says that a key is gone and nothing else: its other columns are null, also where the source sends them
  (REPLICA IDENTITY FULL). The last values are in the version before it, and need not be kept twice.
-#}
{% macro parsed_value(column, lacking) -%}
  {%- set name = cdc_vault.quoted(column.name) -%}
  {%- if column.is_key -%}
    {{ name }}
  {%- elif column in lacking -%}
    case when _op = 'd' then null when {{ cdc_vault.lacks(column) }} then _lh_filled_{{ lacking.index(column) + 1 }} else {{ name }} end
  {%- else -%}
    case when _op <> 'd' then {{ name }} end
  {%- endif -%}
{%- endmacro %}
