{#-
  A mart of which a load changes a few rows (`meta.built_by`): those are merged into it, and the others are not computed.
  `LAKEHOUSE_CHANGES` (by table, as JSON) has their `keys`, and under `through` tables in which rows with certain values (by
  column) have more of them, in the columns `ends`. Who gives it has seen that nothing but appends came since the mart was built, of SQL with
  the hash `made_of`. Without it a mart is built whole.

  The keys are literals of the statement, which Trino hands through joins to every scan, so that their number is bounded.
  A key that the query does not find any more is deleted.
-#}
{% macro changes_given(sql, existing) %}
  {%- set given = fromjson(env_var("LAKEHOUSE_CHANGES", "{}")).get(this.schema ~ "." ~ this.identifier) -%}
  {{ return(given if given and existing is not none and not should_full_refresh() and given.made_of == local_md5(sql) else none) }}
{% endmacro %}

{#- The keys to build again; none where they are too many, or where nobody has said which. -#}
{% macro changed_keys(changes) %}
  {%- if changes is none -%}{{ return(none) }}{%- endif -%}
  {%- set keys = changes["keys"] + [] -%}
  {%- if changes.through -%}{%- do keys.extend(run_query(cdc_vault.keys_through(changes)).rows | map(attribute=0)) -%}{%- endif -%}
  {{ return(keys | unique(case_sensitive=true) | list if keys | length <= cdc_vault.many_keys() else none) }}
{% endmacro %}

{% macro many_keys() %}
  {{ return(1000) }}
{% endmacro %}

{% macro keys_through(changes) -%}
  {%- for table in changes.through %}{% set outer = loop %}{% for end in table.ends %}
  {{ "union" if not (outer.first and loop.first) }}
  select {{ cdc_vault.quoted(end) }} from {{ table.table }} where {% for column, values in table.by.items() %}{{ " or " if not loop.first }}{{ cdc_vault.quoted(column) }} in ({{ cdc_vault.sql_texts(values) }}){% endfor %}
  {%- endfor %}{% endfor %}
  limit {{ cdc_vault.many_keys() + 1 }}
{%- endmacro %}

{% macro merge_keys(relation, key, keys, columns, sql) -%}
  {%- set key, wanted = cdc_vault.quoted(key), cdc_vault.sql_texts(keys) -%}
  {%- set names = cdc_vault.quoted_names(columns) -%}
  merge into {{ relation }} as _lh_mart using (
    select _lh_changed.changed_key as _lh_key, _lh_new.*
    from (select changed_key from unnest(array[{{ wanted }}]) as t (changed_key)) as _lh_changed
    left join (
      select {{ names }} from (
        {{ sql }}
      ) where {{ key }} in ({{ wanted }})
    ) as _lh_new on _lh_new.{{ key }} = _lh_changed.changed_key
  ) as _lh_load
  on _lh_mart.{{ key }} = _lh_load._lh_key and _lh_mart.{{ key }} in ({{ wanted }})
  when matched and _lh_load.{{ key }} is null then delete
  when matched then update set {% for column in columns %}{% set name = cdc_vault.quoted(column.name) %}{{ name }} = _lh_load.{{ name }}{{ ", " if not loop.last }}{% endfor %}
  when not matched and _lh_load.{{ key }} is not null then insert ({{ names }}) values ({% for column in columns %}_lh_load.{{ cdc_vault.quoted(column.name) }}{{ ", " if not loop.last }}{% endfor %})
{%- endmacro %}
