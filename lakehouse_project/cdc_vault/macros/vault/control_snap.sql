{#-
  Control snapshot: the moments at which the business looks back. One row per end of a day since `first_day`, the running
  day included, whose row shows what is known so far until it ends. `is_active` keeps as many of each grain as `keep` says:
  the newest days, ends of weeks (Sunday), of months and of years; PITs and bridges hold the active moments only.
-#}
{% macro control_snap(first_day, keep={"days": 14, "weeks": 8, "months": 24, "years": 10}) -%}
  select
    sdts,
    ends_week,
    ends_month,
    ends_year,
    days_ago < {{ keep.days }}
      or (ends_week and days_ago < 7 * {{ keep.weeks }})
      or (ends_month and months_ago < {{ keep.months }})
      or (ends_year and months_ago < 12 * {{ keep.years }}) as is_active
  from (
    select
      sdts,
      day_of_week(sdts) = 1 as ends_week,
      day(sdts) = 1 as ends_month,
      day(sdts) = 1 and month(sdts) = 1 as ends_year,
      date_diff('day', sdts, {{ cdc_vault.last_snapshot() }}) as days_ago,
      date_diff('month', sdts, {{ cdc_vault.last_snapshot() }}) as months_ago
    from (
      select with_timezone(cast(day_begins as timestamp(6)), 'UTC') as sdts
      from unnest(sequence(date '{{ first_day }}' + interval '1' day, {{ cdc_vault.last_snapshot("date") }})) as days (day_begins)
    )
  )
{%- endmacro %}

{#-
  The end of the running day, as text of the query rather than as current_date: a PIT is built anew when its text has
  changed or a table has new data, so that is once a day without new data.
-#}
{% macro last_snapshot(type="timestamp") -%}
  {%- set day = (run_started_at + modules.datetime.timedelta(days=1)).strftime("%Y-%m-%d") -%}
  {{ "date '" ~ day ~ "'" if type == "date" else "timestamp '" ~ day ~ " 00:00:00.000000 UTC'" }}
{%- endmacro %}
