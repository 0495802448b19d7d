{#- For tests, more selects of a problem and an example: keys that are not in the hub they name; column → hub, or {model: …, src_pk: …}. -#}
{% macro orphans(model, hubs) %}
{%- for column, hub in hubs.items() %}
{%- set hub = {"model": hub, "src_pk": column} if hub is string else hub %}
union all
select 'not in {{ hub.model }}', {{ column }}
from {{ model }}
where {{ cdc_vault.is_known(column) }} and {{ column }} not in (select {{ hub.src_pk }} from {{ ref(hub.model) }})
{%- endfor %}
{% endmacro %}

{#- A code as it is compared: as its type is, or as text. -#}
{% macro code_text(column, as_text) -%}
  {{ "cast(" ~ column ~ " as varchar)" if as_text else column }}
{%- endmacro %}

{#- A business key as it is hashed; `type` is the one in Postgres, where equal values have several spellings. -#}
{% macro as_hashed(column, normalize, type=none) -%}
  {%- set value = cdc_vault.one_spelling(column, {"name": column, "type": "varchar", "postgres_type": type}) if type else column -%}
  {{ "upper(trim(cast(" ~ value ~ " as varchar)))" if normalize == "upper_trim" else value }}
{%- endmacro %}

{#- What a stage published in the last `tested_days`. -#}
{% macro published_lately(stage) -%}
  load_date >= (select max(load_date) - interval '{{ var("tested_days", 7) }}' day from {{ stage }})
{%- endmacro %}

{#-
  Rows of a stage (of that `name`) that live in the source and share their hash key with another one: two that live, or one that
  the vault shows as deleted, because the other one was. Only a hub that normalizes its keys, or has them in another type, takes
  several of a table's keys for one; nothing is returned for others.

  Looks at keys that were published lately, and at how the hub spells them, which may be as a row that has not changed for
  years. Of those with several spellings, which are few or none, the rows are looked up by the table's own key.
-#}
{% macro rows_of_one_key(stage, name, src_pk) -%}
  {%- set said, parts, joined, hubs = cdc_vault.said_by_stage(name), [], [], [] -%}
  {%- set spec = (said.hashed_keys or {}).get(src_pk, []) -%}
  {%- set spec = spec if spec is mapping else {"columns": spec} -%}
  {%- if spec.normalize or spec.get("columns", []) | select("mapping") | list -%}
  {%- set columns = cdc_vault.stage_columns(said.source_model, said.derived_columns) -%}
  {%- for column in cdc_vault.columns_of_key(spec) -%}
    {%- set text = cdc_vault.code_text("stage." ~ cdc_vault.spelled(column)[0], columns[column].type != "varchar") -%}
    {%- do parts.append(text ~ " as part_" ~ loop.index) -%}
    {%- do joined.append("several.part_" ~ loop.index ~ " = " ~ text) -%}
  {%- endfor -%}
  {%- for node in graph.nodes.values() if node.resource_type == "model" and (node.config.meta or {}).get("hash_key") == src_pk -%}
    {%- set hub, own = api.Relation.create(node.database, node.schema, node.alias), [] -%}
    {%- for column in cdc_vault.spelled(node.config.meta.business_key) -%}{%- do own.append("cast(" ~ column ~ " as varchar)") -%}{%- endfor -%}
    {%- if cdc_vault.relation_exists(hub) -%}{%- do hubs.append({"relation": hub, "key": own}) -%}{%- endif -%}
  {%- endfor %}
  with lately as (
    select distinct stage.{{ src_pk }}, {{ parts | join(", ") }}
    from {{ stage }} as stage
    where {{ cdc_vault.is_known("stage." ~ src_pk) }} and {{ cdc_vault.published_lately(stage) }}
  ),
  spellings as (
    select * from lately
    {%- for hub in hubs %}
    union
    select {{ src_pk }}, {{ hub.key | join(", ") }} from {{ hub.relation }} where {{ cdc_vault.among([src_pk], "lately") }}
    {%- endfor %}
  ),
  several as (
    select *
    from (select *, count(*) over (partition by {{ src_pk }}) as texts from spellings)
    where texts > 1
  ),
  newest as (
    select
      stage.{{ src_pk }}, {{ parts | join(", ") }}, max(stage.source_seq) as said_at,
      max_by(stage.is_deleted, stage.source_seq) as is_gone, max_by(stage.record_source, stage.source_seq) as record_source
    from {{ stage }} as stage
    join several on {{ joined | join(" and ") }}
    group by {{ range(1, parts | length + 2) | join(", ") }}
  ),
  compared as (
    select
      record_source, is_gone, count_if(not is_gone) over (partition by {{ src_pk }}) as rows_alive,
      max_by(is_gone, said_at) over (partition by {{ src_pk }}) as key_is_gone
    from newest
  )
  select record_source from compared where not is_gone and (rows_alive > 1 or key_is_gone)
  {%- endif -%}
{%- endmacro %}
