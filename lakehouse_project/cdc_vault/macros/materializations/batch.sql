{#-
  What a batch of new rows can break of the model's tests is looked at before it is in the table: its keys are `given`, and
  none of them comes twice (`once`: lists of columns). A batch that breaks it is refused whole, by the statement that would
  insert it. That no key is stored twice, and what no batch tells alone, is for the tests themselves. So are first loads, and
  batches of a million rows, or of an unknown number: to compare them with one another would double their memory.

  From tests of the model that are errors and look at all rows. As dbt's own `unique` has it, what has a NULL is not twice.
  Parsed has what the source had, and refuses nothing.
-#}
{% macro batch_checks() %}
  {%- set checks = {"once": [], "given": []} -%}
  {%- for test in cdc_vault.tests_by_model().get(model.unique_id, []) -%}
    {%- set kind, said = test.test_metadata.name, test.test_metadata.kwargs -%}
    {%- if not test.config.where and test.config.severity | lower == "error" -%}
      {%- if kind in ("unique", "not_null") and modules.re.match("\\w+\\Z", said.column_name or "") -%}
        {%- set column = cdc_vault.spelled([said.column_name]) -%}
        {%- if kind == "unique" -%}{%- do checks.once.append(column) -%}{%- else -%}{%- do checks.given.extend(column) -%}{%- endif -%}
      {%- elif kind in cdc_vault.keys_of_events() -%}
        {%- set keys = cdc_vault.spelled(cdc_vault.as_list(said.src_pk)) -%}
        {%- do checks.given.extend(keys) -%}
        {%- do checks.once.append(keys + cdc_vault.spelled(cdc_vault.as_list(said.src_cdk or [])) + cdc_vault.keys_of_events()[kind]) -%}
      {%- endif -%}
    {%- endif -%}
  {%- endfor -%}
  {{ return(checks if checks.once or checks.given else none) }}
{% endmacro %}

{#- The tests that are attached to each model, by its id: a project of many models is gone through once. -#}
{% macro tests_by_model() %}
  {%- if "lakehouse_tests" not in graph -%}
    {%- set found = {} -%}
    {%- for test in graph.nodes.values() if test.resource_type == "test" and test.attached_node -%}
      {%- do found.setdefault(test.attached_node, []).append(test) -%}
    {%- endfor -%}
    {%- do graph.update(lakehouse_tests=found) -%}
  {%- endif -%}
  {{ return(graph.lakehouse_tests) }}
{% endmacro %}

{#- By test, the columns that tell rows apart beside the key `src_pk`. -#}
{% macro keys_of_events() %}
  {{ return({
    "hub_is_sound": [], "link_is_sound": [], "nh_link_is_sound": [], "nh_sat_is_sound": [],
    "sat_is_sound": ["source_seq"], "ref_is_sound": ["source_seq"], "rec_track_sat_is_sound": ["load_date", "record_source"],
  }) }}
{% endmacro %}

{#- The rows of a query, which fails at one that breaks the checks. The message names it, so no plan can fail beforehand. -#}
{% macro refusing_batch(relation, checks, query) -%}
  {%- if not checks -%}{{ query }}{%- else -%}
  select *
  from (
    select *
      {%- for keys in checks.once %},
      row_number() over (partition by {{ keys | join(", ") }}) as _lh_nth_{{ loop.index }}
      {%- endfor %}
    from (
      {{ query }}
    )
  )
  where case
    {%- for column in checks.given | unique %}
    when {{ column }} is null then {{ cdc_vault.refuse_batch(relation, column, "is not given", [column]) }}
    {%- endfor %}
    {%- for keys in checks.once %}
    when _lh_nth_{{ loop.index }} > 1 and {{ keys | join(" is not null and ") }} is not null then {{ cdc_vault.refuse_batch(relation, keys | join(", "), "twice", keys) }}
    {%- endfor %}
    else true
  end
  {%- endif -%}
{%- endmacro %}

{% macro refuse_batch(relation, columns, problem, shown) -%}
  {%- set values = [] -%}
  {%- for column in shown -%}{%- do values.append("coalesce(cast(" ~ column ~ " as varchar), 'NULL')") -%}{%- endfor -%}
  cast(fail({{ cdc_vault.sql_text("no new row gets into " ~ relation.schema ~ "." ~ relation.identifier ~ ", because one has " ~ columns ~ " " ~ problem ~ ": ") }} || {{ values | join(" || ', ' || ") }}) as boolean)
{%- endmacro %}
