{#- Written by `lakehouse scaffold`, its own while unchanged: fa6b7271ec8ef9d5 -#}
{{ cdc_vault.sts_sat(src_pk='hk_account', source_model='stg_bank__accounts', src_nk=['id']) }}
