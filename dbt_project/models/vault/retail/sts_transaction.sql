{#- Written by `lakehouse scaffold`, its own while unchanged: b8648d7ee2b197a9 -#}
{{ sts_sat(src_pk='hk_transaction', source_model='stg_retail__transactions') }}
