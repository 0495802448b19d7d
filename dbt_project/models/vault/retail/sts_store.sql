{#- Written by `lakehouse scaffold`, its own while unchanged: 93ddb40afda4387e -#}
{{ sts_sat(src_pk='hk_store', source_model='stg_retail__stores') }}
