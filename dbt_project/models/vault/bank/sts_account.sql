{#- Written by `lakehouse scaffold`, its own while unchanged: 349258db81071ac1 -#}
{{ cdc_vault.sts_sat(src_pk='hk_account', source_model='stg_bank__accounts') }}
