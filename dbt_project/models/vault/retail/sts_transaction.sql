{#- Written by `lakehouse scaffold`, its own while unchanged: dd14d0e501d2c32d -#}
{{ cdc_vault.sts_sat(src_pk='hk_transaction', source_model='stg_retail__transactions') }}
