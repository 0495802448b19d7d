{#- An aggregate equals the one of the model it was made from. -#}
{% test same_total_as(model, expression, other, other_expression) %}
select found.total as found, expected.total as expected
from (select {{ expression }} as total from {{ model }}) as found
cross join (select {{ other_expression }} as total from {{ other }}) as expected
where found.total is distinct from expected.total
{% endtest %}
