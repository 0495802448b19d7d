{#- Written by `lakehouse scaffold`, its own while unchanged: 349013a2d1983ce3 -#}
{{ sts_sat(src_pk='hk_account', source_model='stg_bank__accounts') }}
