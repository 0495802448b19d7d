{#-
  A view that is left alone while its definition is the same. dbt's own replaces every view in every run, and each
  replacement leaves another metadata file in the object store; with sensors that is tens of thousands a day. The
  checksum of the definition stands at the end of the view's comment.
-#}
{% materialization view, adapter='trino' %}
  {%- set existing = load_cached_relation(this) -%}
  {%- set relation = this.incorporate(type='view') -%}
  {%- set marker = "[definition " ~ local_md5(sql ~ model.description ~ tojson(column_descriptions())) ~ "]" -%}

  {{ run_hooks(pre_hooks) }}
  {%- if existing is not none and existing.is_view and not should_full_refresh() and marker in view_text(existing) -%}
    {%- call noop_statement("main", "unchanged", "unchanged", 0) -%}{%- endcall -%}
  {%- else -%}
    {%- if existing is not none and not existing.is_view -%}{%- do adapter.drop_relation(existing) -%}{%- endif -%}
    {%- call statement("main") -%}
      create or replace view {{ relation }}
      {{ comment_clause(model.description ~ " " ~ marker) }}
      security {{ config.get("view_security", "definer") }}
      as {{ sql }}
    {%- endcall -%}
    {%- do comment_columns(relation) -%}
  {%- endif -%}
  {{ run_hooks(post_hooks) }}
  {{ return({"relations": [relation]}) }}
{% endmaterialization %}

{% macro column_descriptions() %}
  {%- set found = {} -%}
  {%- for column in model.columns.values() -%}{%- do found.update({column.name: column.description}) -%}{%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{% macro view_text(relation) %}
  {{ return(run_query("show create view " ~ relation).rows[0][0]) }}
{% endmacro %}
