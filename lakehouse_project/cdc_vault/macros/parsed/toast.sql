{#-
  TOASTed columns. An update that does not touch a large value does not carry it: the value is null in raw and the
  column named in `_unchanged`. Parsed takes it from the version before, which may have arrived in the same batch, be
  in parsed already, or stand under another key, where `_old_key` leads.

  A row has a key for a period that starts with an insert of the key (`period_start`); within a period the last value that
  was carried counts. A period that starts with a key change continues the period of the old key: a probe reads what the
  old key had at that moment, and stands at the start of the new period. Where the old key's period itself started with a
  key change of this batch, the row starts with the first of them (`roots`).
-#}

{#- Whether this row lacks the column: it is null, and named as it was called when the row landed. -#}
{% macro lacks(column) -%}
  ({{ cdc_vault.quoted(column.name) }} is null and coalesce(
    {%- for called in column.names %}
    contains(_unchanged, {{ cdc_vault.sql_text(called.name) }}){{ cdc_vault.and_called_so(called) }}
    {{- " or" if not loop.last }}
    {%- endfor -%}
  , false))
{%- endmacro %}

{#- That a row landed while the column was called so, as an addition to a condition. -#}
{% macro and_called_so(called) -%}
  {%- if called.since %} and _ingested_at >= timestamp '{{ called.since }}'{% endif -%}
  {%- if called.until %} and _ingested_at < timestamp '{{ called.until }}'{% endif -%}
{%- endmacro %}

{#-
  The columns with all their `names`, today's first, and the moments between which rows landed by each: a row names what
  it lacks, and its old key, as that was called then. Raw keeps them in its properties, a line each, which are read only
  when some row lacks anything. A line without a moment is of an earlier version. `landed` is the type in raw.
-#}
{% macro with_former_names(raw, columns, unchanged) %}
  {%- set before, landed, found = {}, {}, [] -%}
  {%- if unchanged -%}
    {%- for column in cdc_vault.table_columns(raw) -%}{%- do landed.update({column.name | lower: column.type | lower | replace(", ", ",")}) -%}{%- endfor -%}
    {%- set prefix = "lakehouse.formerly." -%}
    {%- for row in run_query("select key, value from " ~ cdc_vault.system_table(raw, "properties") ~ " where key like '" ~ prefix ~ "%'").rows -%}
      {%- do before.update({row[0].replace(prefix, "", 1): row[1]}) -%}
    {%- endfor -%}
  {%- endif -%}
  {%- for column in columns -%}
    {%- set names = [{"name": column.name, "since": "", "until": ""}] -%}
    {%- for former in cdc_vault.former_names(column.name, before.get(column.name, "")) -%}
      {%- do names[-1].update(since=former.until) -%}
      {%- do names.append({"name": former.name, "since": "", "until": former.until}) -%}
    {%- endfor -%}
    {%- do found.append(dict(column, names=names, landed=landed.get(column.name | lower))) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- What a property of raw says of a column: JSON, or the lines of text of an earlier version. -#}
{% macro former_names(column, stated) %}
  {%- set found = [] -%}
  {%- if stated.startswith("[{") -%}
    {%- do found.extend(fromjson(stated)) -%}
  {%- else -%}
    {%- for line in stated.split("\n") if line -%}
      {%- set name, _, until = line.partition("\t") -%}
      {%- do found.append({"name": name, "until": until}) -%}
    {%- endfor -%}
  {%- endif -%}
  {%- for former in found if not modules.re.match("([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]{15} UTC)?\\Z", former.until) -%}
    {{ exceptions.raise_compiler_error("column " ~ column ~ ": its former names are damaged: " ~ former.until) }}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#-
  The key before a key change, typed. A row says it by the lake's names of the time when it landed; one of an earlier
  version by the source's.
-#}
{% macro old_key_values(columns) -%}
  {%- set said = "cast(json_parse(_old_key) as map(varchar, varchar))" -%}
  {%- for column in columns if column.is_key -%}
    {%- set cases, found = [], [] -%}
    {%- for called in column.names -%}
      {%- set name = cdc_vault.sql_text(called.name) -%}
      {%- do cases.append("when contains(map_keys(" ~ said ~ "), " ~ name ~ ")" ~ cdc_vault.and_called_so(called) ~ " then element_at(" ~ said ~ ", " ~ name ~ ")") -%}
    {%- endfor -%}
    {%- for name in ([column.source_name] + column.names | map(attribute="name") | list) | unique(case_sensitive=true) -%}
      {%- do found.append("element_at(" ~ said ~ ", " ~ cdc_vault.sql_text(name) ~ ")") -%}
    {%- endfor -%}
    {%- set text = "case " ~ cases | join(" ") ~ " else coalesce(" ~ found | join(", ") ~ ") end" if found | length > 1 else found[0] -%}
    {{ cdc_vault.from_postgres_text(text, column) }} as {{ cdc_vault.quoted(column.name) }}{{ ", " if not loop.last }}
  {%- endfor -%}
{%- endmacro %}

{#- The columns that some row of the batch lacks. -#}
{% macro lacking_columns(columns, unchanged) %}
  {%- set lacking = [] -%}
  {%- for column in columns if column.names | map(attribute="name") | select("in", unchanged) | list -%}
    {%- do lacking.append(column) -%}
  {%- endfor -%}
  {{ return(lacking) }}
{% endmacro %}

{#- CTEs that end in `filled`: the arrived rows, with `filled_1`, `filled_2` … for the lacking columns. -#}
{% macro toast_fill(columns, new_data) -%}
  {%- set lacking = cdc_vault.lacking_columns(columns, new_data.unchanged) -%}
  {%- set key = cdc_vault.key_names(columns) -%}
  lacking_keys as (
    select {{ key }} from arrived where _unchanged is not null
    {%- if new_data.moves %}
    union all
    select {{ cdc_vault.old_key_values(columns) }} from arrived where _unchanged is not null and _old_key is not null
    {%- endif %}
  ),
  key_periods as (
    select *, max(case when _op in ('c', 'r') then _lh_position end) over (partition by {{ key }} order by _lh_position) as _lh_period_start
    from (
      select arrived.*, 'arrived' as _lh_kind
        {%- for column in lacking %},
        case when _op <> 'd' and not {{ cdc_vault.lacks(column) }} then array[{{ cdc_vault.quoted(column.name) }}] end as _lh_carried_{{ loop.index }}
        {%- endfor %}
      from arrived
      {%- if new_data.known %}
      union all
      {{ cdc_vault.beside_arrived(columns, lacking, "known") }}
      from {{ this }}
      where ({{ cdc_vault.comparable_key(columns) }}) in (select {{ cdc_vault.comparable_key(columns) }} from lacking_keys)
      {%- endif %}
      {%- if new_data.moves %}
      union all
      {{ cdc_vault.beside_arrived(columns, lacking, "probe") }}
      from (
        select _lh_position, {{ cdc_vault.old_key_values(columns) }} from arrived where _unchanged is not null and _old_key is not null
      )
      {%- endif %}
    )
  ),
  {%- if new_data.roots %}
  row_starts as (
    {{ cdc_vault.row_starts(new_data.roots) }}
  ),
  {%- endif %}
  carried_on as (
    select key_periods.*
      {%- set start = "case when _lh_kind = 'probe' then _lh_position else _lh_period_start end" %}
      {%- if new_data.moves %},
      {{ "coalesce(_lh_root, " ~ start ~ ")" if new_data.roots else start }} as _lh_row_start
      {%- endif %}
      {%- for column in lacking %},
      last_value(_lh_carried_{{ loop.index }}) ignore nulls over (partition by {{ key }}, _lh_period_start order by _lh_position) as _lh_value_{{ loop.index }}
      {%- endfor %}
    from key_periods
    {%- if new_data.roots %}
    left join row_starts on _lh_change = {{ start }}
    {%- endif %}
  ),
  filled as (
    select *
      {%- for column in lacking %},
      {% if new_data.moves -%}
      (last_value(case when _lh_kind = 'probe' then _lh_value_{{ loop.index }} else _lh_carried_{{ loop.index }} end) ignore nulls over (
        partition by _lh_row_start, case when _lh_row_start is null then row({{ key }}) end order by _lh_position, case _lh_kind when 'probe' then 0 else 1 end
      ))[1]
      {%- else -%}
      _lh_value_{{ loop.index }}[1]
      {%- endif %} as _lh_filled_{{ loop.index }}
      {%- endfor %}
    from carried_on
  )
{%- endmacro %}

{#- A row that stands beside the arrived ones: of parsed (`known`), or a probe at a key change. -#}
{% macro beside_arrived(columns, lacking, kind) -%}
  select
    {%- for column in columns %}
    {{ cdc_vault.quoted(column.name) if column.is_key else "null" }},
    {%- endfor %}
    {{ "_op" if kind == "known" else "null" }}, null, null, null, null, null, null, null,
    {{ cdc_vault.source_position() if kind == "known" else "_lh_position" }}, '{{ kind }}'
    {%- for column in lacking %},
    {{ "case when not _is_deleted then array[" ~ cdc_vault.quoted(column.name) ~ "] end" if kind == "known" else "null" }}
    {%- endfor %}
{%- endmacro %}

{#-
  The starts of rows, by the positions of the key changes that continue them. As one text, that is taken apart: branches of
  a CASE are more than Trino compiles, from about a thousand on. Without zeros in front there is room for some tens of
  thousands of key changes.
-#}
{% macro row_starts(roots) -%}
  {%- set chains, texts = {}, [] -%}
  {%- for change, root in roots.items() -%}
    {%- do chains.setdefault(cdc_vault.short_position(root), []).append(cdc_vault.short_position(change)) -%}
  {%- endfor -%}
  {%- for root, changes in chains.items() -%}{%- do texts.append(root ~ "=" ~ changes | join(",")) -%}{%- endfor -%}
  select {{ cdc_vault.long_position("_lh_short") }} as _lh_change, {{ cdc_vault.long_position("split_part(_lh_chain, '=', 1)") }} as _lh_root
    from unnest(split({{ cdc_vault.sql_text(texts | join(" ")) }}, ' ')) as _lh_chains (_lh_chain)
    cross join unnest(split(split_part(_lh_chain, '=', 2), ',')) as _lh_changes (_lh_short)
{%- endmacro %}

{#- A position as `source_position` writes it, without zeros in front; and back, in SQL. -#}
{% macro short_position(position) -%}
  {{ position.split(".") | map("int") | join(".") }}
{%- endmacro %}

{% macro long_position(short) -%}
  {%- for width in (10, 19, 19) -%}
    lpad(split_part({{ short }}, '.', {{ loop.index }}), {{ width }}, '0'){{ " || '.' || " if not loop.last }}
  {%- endfor -%}
{%- endmacro %}

{#-
  Key changes of key changes within a batch: position of each → position of the first of its chain. Rare, so they are
  looked up only when there are key changes that lack a column, and followed here rather than in SQL.
-#}
{% macro chained_key_changes(raw, columns, window) %}
  {%- set lacking = "_unchanged is not null and _old_key is not null" -%}
  {%- set found = run_query(
    "with changes as (select *, " ~ cdc_vault.source_position() ~ " as _lh_position from " ~ raw ~ " where _op in ('c', 'r') and " ~ window ~ "),"
    ~ " moved as (select _lh_position, " ~ cdc_vault.old_key_values(columns) ~ " from changes where " ~ lacking ~ ")"
    ~ " select moved._lh_position, max(changes._lh_position) from moved join changes on (" ~ cdc_vault.comparable_key(columns, "changes") ~ ") = ("
    ~ cdc_vault.comparable_key(columns, "moved") ~ ") and changes._lh_position < moved._lh_position group by moved._lh_position"
    ~ " having max_by(" ~ lacking ~ ", changes._lh_position) order by 1"
  ) -%}
  {%- set roots = {} -%}
  {%- for row in found.rows -%}
    {%- do roots.update({row[0]: roots.get(row[1], row[1])}) -%}
  {%- endfor -%}
  {{ return(roots) }}
{% endmacro %}
