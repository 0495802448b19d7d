{#-
  Ghost records and the policy for keys that are not there.

  A key that is NULL in every column hashes to the zero key `000…0` (unknown), one that a declaration calls wrong to the
  error key `fff…f`. Neither names a thing, so neither is in a hub, and no satellite says anything about it; links keep it,
  because that a reference is missing is a fact about the others. `keys_are_given` counts such rows at each stage.

  A ghost record is the one row that a join by such a key finds, so that a query through a PIT, or from a link whose
  reference is wrong, needs no outer join. By `vars.vault_ghost_records` satellites have one for each of the two keys; hubs
  and links do not, because `select count(*)` of a hub should be the number of its business keys. Add `hub` and `link`
  there for tools that expect them.
-#}

{#- Whether tables of that kind (hub, link, sat) carry ghost records. -#}
{% macro has_ghosts(kind) %}
  {{ return(kind in var("vault_ghost_records", ["sat"])) }}
{% endmacro %}

{#- Whether a hash key names something. -#}
{% macro is_known(src_pk) -%}
  {{ src_pk }} not in ({{ cdc_vault.zero_key() }}, {{ cdc_vault.error_key() }})
{%- endmacro %}

{#- Before every real position, and of the same form. -#}
{% macro ghost_position() -%}
  '{{ "0" * 10 }}.{{ "0" * 19 }}.{{ "0" * 19 }}'
{%- endmacro %}

{#- When ghosts happened. -#}
{% macro ghost_moment() -%}
  timestamp '1900-01-01 00:00:00.000000 UTC'
{%- endmacro %}

{#- The keys of which the target holds no ghost record yet. Their moment is a partition of its own. -#}
{% macro missing_ghosts(loaded, src_pk, src_ldts, src_seq) %}
  {%- set stored, missing = [], [] -%}
  {%- if loaded -%}
    {%- set ghosts = "select " ~ src_pk ~ " from " ~ this ~ " where " ~ src_ldts ~ " = " ~ cdc_vault.ghost_moment() ~ " and " ~ src_seq ~ " = " ~ cdc_vault.ghost_position() -%}
    {%- for row in run_query(ghosts).rows -%}{%- do stored.append(cdc_vault.sql_text(row[0])) -%}{%- endfor -%}
  {%- endif -%}
  {%- for key in (cdc_vault.zero_key(), cdc_vault.error_key()) if key not in stored -%}{%- do missing.append(key) -%}{%- endfor -%}
  {{ return(missing) }}
{% endmacro %}

{#- What a load adds to its rows: those that are carried over, and ghost records. `keys` are columns with the ghost's key, `values` those of others. -#}
{% macro other_rows(plan, columns, keys, values, src_ldts, src_source, src_seq) -%}
  {{- cdc_vault.and_carried(plan, columns) }}
  {%- for ghost in plan.ghosts %}
  {%- set own = dict(values) -%}
  {%- for key in keys -%}{%- do own.update({key: ghost}) -%}{%- endfor %}
  union all
  {{ cdc_vault.ghost_row(columns, own, src_ldts, src_source, src_seq) }}
  {%- endfor %}
{%- endmacro %}

{#- A row of nothing: `values` by column, what every ghost has, and null. -#}
{% macro ghost_row(columns, values, src_ldts, src_source, src_seq) -%}
  {%- set long_ago = cdc_vault.ghost_moment() -%}
  {%- set event = {src_ldts: long_ago, "applied_date": long_ago, src_seq: cdc_vault.ghost_position(), src_source: "'ghost'"} -%}
  select
    {%- for column in columns %}
    {{ values.get(column) or event.get(column, "null") }} as {{ column }}{{ "," if not loop.last }}
    {%- endfor %}
{%- endmacro %}
