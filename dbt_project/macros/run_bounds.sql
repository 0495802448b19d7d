{% macro write_run_bounds() %}{% endmacro %}
