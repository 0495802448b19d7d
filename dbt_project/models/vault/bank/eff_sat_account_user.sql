{#- Written by `lakehouse scaffold`, its own while unchanged: 8ed163d422b13352 -#}
{{ cdc_vault.eff_sat(
  src_pk='hk_account_user',
  src_dfk='hk_account',
  source_model='stg_bank__accounts',
  src_nk=['id'],
) }}
