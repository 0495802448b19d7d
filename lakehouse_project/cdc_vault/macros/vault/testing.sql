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
