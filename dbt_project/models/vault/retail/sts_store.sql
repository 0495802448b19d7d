{#- Written by `lakehouse scaffold`, its own while unchanged: 0348a9988a309fcb -#}
{{ cdc_vault.sts_sat(src_pk='hk_store', source_model='stg_retail__stores') }}
