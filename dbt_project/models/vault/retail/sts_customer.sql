{#- Written by `lakehouse scaffold`, its own while unchanged: 18bb78f6354936bb -#}
{{ sts_sat(src_pk='hk_customer', source_model='stg_retail__customers') }}
