{#- Written by `lakehouse scaffold`, its own while unchanged: 2ece8150e92f5f00 -#}
{{ cdc_vault.hub(src_pk='hk_user', src_nk='user_id', source_model=['stg_bank__users', 'stg_bank__accounts']) }}
